"""Totals of the ledger, kept as it grows, and rounds whose single lines and reports may go."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

PARAMETERS = (
    "mechanism",
    "trust",
    "sensitivity",
    "scale",
    "coordinates",
    "delta",
    "epsilon",
    "squared_ratio",
    "unbounded",
)
KEY = ("device_id", "stream", *PARAMETERS)
FORGETTING = ("ledger", "releases", "transitions", "release_keys")
"""What may be deleted of rounds that are forgotten, and of no other."""


def upgrade() -> None:
    op.create_table(
        "ledger_totals",
        sa.Column("device_id", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("mechanism", sa.String(length=32), nullable=False),
        sa.Column("trust", sa.String(length=16), nullable=False),
        sa.Column("sensitivity", sa.Float(), nullable=False),
        sa.Column("scale", sa.Float(), nullable=False),
        sa.Column("coordinates", sa.Integer(), nullable=False),
        sa.Column("delta", sa.Float(), nullable=False),
        sa.Column("epsilon", sa.Float(), nullable=False),
        sa.Column("squared_ratio", sa.Float(), nullable=False),
        sa.Column("unbounded", sa.Boolean(), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.Column("settled", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_ledger_totals_device_id")),
        sa.PrimaryKeyConstraint(*KEY, name=op.f("pk_ledger_totals")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "charged_rounds",
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("round_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_charged_rounds_round_id")),
        sa.PrimaryKeyConstraint("stream", "round_id", name=op.f("pk_charged_rounds")),
        sqlite_with_rowid=False,
    )
    op.add_column("rounds", sa.Column("forgotten", sa.Integer(), nullable=False, server_default="0"))
    op.create_index(op.f("ix_rounds_forgotten_number"), "rounds", ["forgotten", "number"])
    columns = ", ".join(KEY)
    op.execute(
        f"INSERT INTO ledger_totals ({columns}, times, settled) "
        f"SELECT {columns}, count(*), 0 FROM ledger GROUP BY {columns}"
    )
    op.execute("INSERT INTO charged_rounds (stream, round_id) SELECT DISTINCT stream, round_id FROM ledger")
    _only_forgotten()
    _only_growing()


def downgrade() -> None:
    dialect = op.get_bind().dialect.name
    for table in FORGETTING:
        _drop(f"{table}_no_delete", table)
        trigger = f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table}"
        if dialect == "sqlite":
            op.execute(f"{trigger} BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END")
        elif dialect == "postgresql":
            op.execute(f"{trigger} FOR EACH ROW EXECUTE FUNCTION refuse_change()")
    op.drop_table("charged_rounds")
    op.drop_table("ledger_totals")
    if dialect == "postgresql":
        op.execute("DROP FUNCTION refuse_unless_forgotten()")
        op.execute("DROP FUNCTION refuse_less()")
    op.drop_index(op.f("ix_rounds_forgotten_number"), "rounds")
    op.drop_column("rounds", "forgotten")


def _only_forgotten() -> None:
    """Have the database itself refuse to delete what is append-only, of every round that is not forgotten."""
    dialect = op.get_bind().dialect.name
    if dialect == "postgresql":
        op.execute(
            "CREATE FUNCTION refuse_unless_forgotten() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF (SELECT forgotten FROM rounds WHERE id = OLD.round_id) > 0 THEN RETURN OLD; END IF; "
            "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME "
            "USING ERRCODE = 'integrity_constraint_violation'; END $$"
        )
    for table in FORGETTING:
        _drop(f"{table}_no_delete", table)
        trigger = f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table}"
        if dialect == "sqlite":
            op.execute(
                f"{trigger} WHEN NOT EXISTS (SELECT 1 FROM rounds WHERE id = OLD.round_id AND forgotten > 0) "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
        elif dialect == "postgresql":
            op.execute(f"{trigger} FOR EACH ROW EXECUTE FUNCTION refuse_unless_forgotten()")


def _only_growing() -> None:
    """Have the database itself refuse a total that shrinks, changes what it is of, or goes."""
    less = " OR ".join(
        [f"NEW.{name} <> OLD.{name}" for name in KEY] + [f"NEW.{name} < OLD.{name}" for name in ("times", "settled")]
    )
    match op.get_bind().dialect.name:
        case "sqlite":
            refusal = "BEGIN SELECT RAISE(ABORT, 'ledger_totals only grow'); END"
            op.execute(f"CREATE TRIGGER ledger_totals_grow BEFORE UPDATE ON ledger_totals WHEN {less} {refusal}")
            op.execute(f"CREATE TRIGGER ledger_totals_no_delete BEFORE DELETE ON ledger_totals {refusal}")
        case "postgresql":
            op.execute(
                "CREATE FUNCTION refuse_less() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF TG_OP = 'UPDATE' AND NOT ({less}) THEN RETURN NEW; END IF; "
                "RAISE EXCEPTION 'ledger_totals only grow' USING ERRCODE = 'integrity_constraint_violation'; END $$"
            )
            for name, change in (("grow", "UPDATE"), ("no_delete", "DELETE")):
                op.execute(
                    f"CREATE TRIGGER ledger_totals_{name} BEFORE {change} ON ledger_totals "
                    "FOR EACH ROW EXECUTE FUNCTION refuse_less()"
                )


def _drop(trigger: str, table: str) -> None:
    on = f" ON {table}" if op.get_bind().dialect.name == "postgresql" else ""
    op.execute(f"DROP TRIGGER IF EXISTS {trigger}{on}")
