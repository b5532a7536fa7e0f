"""Keys of releases, and a second charge of a report whose round draws for other inputs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "release_keys",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("round_id", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("inputs_sha256", sa.String(length=64), nullable=False),
        sa.Column("key", sa.LargeBinary(length=32), nullable=True),
        sa.Column("key_sha256", sa.String(length=64), nullable=False),
        sa.Column("made_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_release_keys_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_release_keys")),
        sa.UniqueConstraint("key_sha256", name=op.f("uq_release_keys_key_sha256")),
        sa.UniqueConstraint(
            "round_id", "stream", "inputs_sha256", name=op.f("uq_release_keys_round_id_stream_inputs_sha256")
        ),
    )
    _refuse("release_keys", "DELETE", "")
    # Forgetting the key is the only change.
    _refuse("release_keys", "UPDATE", " OF id, round_id, stream, inputs_sha256, key_sha256, made_at")
    _ledger(("report_id",), ("report_id", "draw"))


def downgrade() -> None:
    _ledger(("report_id", "draw"), ("report_id",))
    op.drop_table("release_keys")


def _ledger(old: tuple[str, ...], new: tuple[str, ...]) -> None:
    """Another constraint and column ``draw``. SQLite's table is made anew, so what keeps it append-only is, too."""
    sqlite = op.get_bind().dialect.name == "sqlite"
    with op.batch_alter_table("ledger") as table:
        table.drop_constraint(_unique(old), type_="unique")
        if "draw" in new:
            table.add_column(sa.Column("draw", sa.Integer(), nullable=False, server_default="1"))
        else:
            table.drop_column("draw")
        table.create_unique_constraint(_unique(new), list(new))
    if sqlite:
        for change in ("UPDATE", "DELETE"):
            _refuse("ledger", change, "")


def _unique(columns: tuple[str, ...]) -> str:
    return str(op.f(f"uq_ledger_{'_'.join(columns)}"))


def _refuse(table: str, change: str, of: str) -> None:
    """Have the database itself refuse a change."""
    trigger = f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change}{of} ON {table} "
    match op.get_bind().dialect.name:
        case "sqlite":
            op.execute(f"{trigger} BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END")
        case "postgresql":
            op.execute(f"{trigger} FOR EACH ROW EXECUTE FUNCTION refuse_change()")
