"""The first schema: devices, rounds, reports, ledger, releases and the registry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = ("ledger", "publications", "releases", "transitions")


def _refuse(table: str, change: str) -> None:
    """Have the database itself keep a table append-only."""
    trigger = f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
    match op.get_bind().dialect.name:
        case "sqlite":
            op.execute(f"{trigger} BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END")
        case "postgresql":
            op.execute(f"{trigger} FOR EACH ROW EXECUTE FUNCTION refuse_change()")


def upgrade() -> None:
    op.create_table(
        "devices",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("public_key", sa.LargeBinary(length=32), nullable=False),
        sa.Column("enrolled_at", sa.Float(), nullable=False),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        sa.UniqueConstraint("public_key", name=op.f("uq_devices_public_key")),
    )
    op.create_table(
        "marginals",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("round_id", sa.String(length=64), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("words_digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("probabilities", sa.LargeBinary(), nullable=False),
        sa.Column("counts", sa.LargeBinary(), nullable=False),
        sa.Column("variance", sa.Float(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["parent"], ["marginals.version"], name=op.f("fk_marginals_parent")),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_marginals")),
    )
    op.create_table(
        "models",
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("parent", sa.String(length=64), nullable=True),
        sa.Column("round_id", sa.String(length=64), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("optimizer_sha256", sa.String(length=64), nullable=True),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["parent"], ["models.version"], name=op.f("fk_models_parent")),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_models")),
    )
    op.create_table(
        "publications",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_publications")),
    )
    op.create_index(op.f("ix_publications_kind"), "publications", ["kind"])

    op.create_table(
        "nonces",
        sa.Column("device_id", sa.String(length=64), nullable=False),
        sa.Column("nonce", sa.String(length=128), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_nonces_device_id")),
        sa.PrimaryKeyConstraint("device_id", "nonce", name=op.f("pk_nonces")),
    )
    op.create_index(op.f("ix_nonces_expires_at"), "nonces", ["expires_at"])

    op.create_table(
        "rounds",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("base_model", sa.String(length=64), nullable=True),
        sa.Column("base_marginals", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("opened_at", sa.Float(), nullable=True),
        sa.Column("deadline", sa.Float(), nullable=True),
        sa.Column("marginals_reports", sa.Integer(), nullable=False),
        sa.Column("deltas_reports", sa.Integer(), nullable=False),
        sa.Column("model_version", sa.String(length=64), nullable=True),
        sa.Column("marginals_version", sa.Integer(), nullable=True),
        sa.Column("evaluation", sa.JSON(), nullable=True),
        sa.Column("note", sa.String(), nullable=False),
        sa.CheckConstraint(
            "state IN ('planned', 'open', 'closing', 'aggregated', 'evaluated', 'published', 'abandoned')",
            name=op.f("ck_rounds_state"),
        ),
        sa.ForeignKeyConstraint(["base_marginals"], ["marginals.version"], name=op.f("fk_rounds_base_marginals")),
        sa.ForeignKeyConstraint(["base_model"], ["models.version"], name=op.f("fk_rounds_base_model")),
        sa.ForeignKeyConstraint(["marginals_version"], ["marginals.version"], name=op.f("fk_rounds_marginals_version")),
        sa.ForeignKeyConstraint(["model_version"], ["models.version"], name=op.f("fk_rounds_model_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sa.UniqueConstraint("number", name=op.f("uq_rounds_number")),
    )
    op.create_index(op.f("ix_rounds_state"), "rounds", ["state"])

    op.create_table(
        "releases",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("round_id", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("inputs_sha256", sa.String(length=64), nullable=False),
        sa.Column("reports", sa.Integer(), nullable=False),
        sa.Column("mechanism", sa.JSON(), nullable=False),
        sa.Column("counts", sa.LargeBinary(), nullable=True),
        sa.Column("variance", sa.Float(), nullable=False),
        sa.Column("model_version", sa.String(length=64), nullable=True),
        sa.Column("drawn_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["model_version"], ["models.version"], name=op.f("fk_releases_model_version")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_releases_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_releases")),
        sa.UniqueConstraint("round_id", "stream", name=op.f("uq_releases_round_id_stream")),
    )
    op.create_table(
        "reports",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("device_id", sa.String(length=64), nullable=False),
        sa.Column("round_id", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("utterances", sa.Integer(), nullable=False),
        sa.Column("accepted_at", sa.Float(), nullable=False),
        sa.Column("counts", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("blob", sa.String(), nullable=True),
        sa.CheckConstraint("stream IN ('marginals', 'deltas')", name=op.f("ck_reports_stream")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_reports_device_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_reports_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reports")),
        sa.UniqueConstraint("device_id", "round_id", "stream", name=op.f("uq_reports_device_id_round_id_stream")),
    )
    op.create_index(op.f("ix_reports_round_id_stream"), "reports", ["round_id", "stream"])

    op.create_table(
        "transitions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("round_id", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("target", sa.String(length=16), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_transitions_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_transitions")),
    )
    op.create_index(op.f("ix_transitions_round_id"), "transitions", ["round_id"])

    op.create_table(
        "ledger",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("round_id", sa.String(length=64), nullable=False),
        sa.Column("report_id", sa.String(length=64), nullable=False),
        sa.Column("mechanism", sa.String(length=32), nullable=False),
        sa.Column("trust", sa.String(length=16), nullable=False),
        sa.Column("sensitivity", sa.Float(), nullable=False),
        sa.Column("scale", sa.Float(), nullable=False),
        sa.Column("epsilon", sa.Float(), nullable=False),
        sa.Column("squared_ratio", sa.Float(), nullable=False),
        sa.Column("unbounded", sa.Boolean(), nullable=False),
        sa.Column("charged_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_ledger_device_id")),
        sa.ForeignKeyConstraint(["report_id"], ["reports.id"], name=op.f("fk_ledger_report_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_ledger_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger")),
        sa.UniqueConstraint("report_id", name=op.f("uq_ledger_report_id")),
    )
    op.create_index(op.f("ix_ledger_device_id_stream"), "ledger", ["device_id", "stream"])

    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
            "'% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation'; END $$"
        )
    for table in APPEND_ONLY:
        for change in ("UPDATE", "DELETE"):
            _refuse(table, change)


def downgrade() -> None:
    op.drop_index(op.f("ix_ledger_device_id_stream"), "ledger")

    op.drop_table("ledger")
    op.drop_index(op.f("ix_transitions_round_id"), "transitions")

    op.drop_table("transitions")
    op.drop_index(op.f("ix_reports_round_id_stream"), "reports")

    op.drop_table("reports")
    op.drop_table("releases")
    op.drop_index(op.f("ix_rounds_state"), "rounds")

    op.drop_table("rounds")
    op.drop_index(op.f("ix_nonces_expires_at"), "nonces")

    op.drop_table("nonces")
    op.drop_index(op.f("ix_publications_kind"), "publications")

    op.drop_table("publications")
    op.drop_table("models")
    op.drop_table("marginals")
    op.drop_table("devices")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_change()")
