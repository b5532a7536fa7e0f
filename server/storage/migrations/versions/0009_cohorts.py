"""Who a round asks, what an amplified round costs whom, when devices were seen, and what weighs a delta."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "population_charges",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("round_id", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("draw", sa.Integer(), nullable=False),
        sa.Column("eligible", sa.Integer(), nullable=False),
        sa.Column("eligible_at", sa.Float(), nullable=False),
        sa.Column("sampling", sa.Float(), nullable=False),
        sa.Column("mechanism", sa.String(length=32), nullable=False),
        sa.Column("trust", sa.String(length=16), nullable=False),
        sa.Column("sensitivity", sa.Float(), nullable=False),
        sa.Column("scale", sa.Float(), nullable=False),
        sa.Column("coordinates", sa.Integer(), nullable=False),
        sa.Column("delta", sa.Float(), nullable=False),
        sa.Column("epsilon", sa.Float(), nullable=False),
        sa.Column("squared_ratio", sa.Float(), nullable=False),
        sa.Column("unbounded", sa.Boolean(), nullable=False),
        sa.Column("charged_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_population_charges_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_population_charges")),
        sa.UniqueConstraint("round_id", "stream", "draw", name=op.f("uq_population_charges_round_id_stream_draw")),
    )
    for change in ("UPDATE", "DELETE"):
        _refuse("population_charges", change)
    op.add_column("rounds", sa.Column("sampling_key", sa.LargeBinary(length=32), nullable=True))
    op.add_column("rounds", sa.Column("sampling_threshold", sa.BigInteger(), nullable=True))
    op.add_column("rounds", sa.Column("eligible", sa.Integer(), nullable=True))
    op.add_column("reports", sa.Column("loss", sa.Float(), nullable=True))
    op.add_column("reports", sa.Column("word_error", sa.Float(), nullable=True))
    op.add_column("devices", sa.Column("seen_at", sa.Float(), nullable=True))
    op.create_index(op.f("ix_devices_seen_at"), "devices", ["seen_at"])


def downgrade() -> None:
    op.drop_index(op.f("ix_devices_seen_at"), "devices")
    op.drop_column("devices", "seen_at")
    for name in ("word_error", "loss"):
        op.drop_column("reports", name)
    for name in ("eligible", "sampling_threshold", "sampling_key"):
        op.drop_column("rounds", name)
    op.drop_table("population_charges")


def _refuse(table: str, change: str) -> None:
    """Have the database itself refuse a change."""
    trigger = f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
    match op.get_bind().dialect.name:
        case "sqlite":
            op.execute(f"{trigger} BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END")
        case "postgresql":
            op.execute(f"{trigger} FOR EACH ROW EXECUTE FUNCTION refuse_change()")
