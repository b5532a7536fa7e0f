"""Weights that were removed by intention; charges of devices that enrol later, too; measures of single devices in
rounds that have ended, and the hours of their charges, forgotten."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "removed_weights",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("removed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_removed_weights")),
    )
    op.add_column("population_charges", sa.Column("until", sa.Float(), nullable=True))
    _forget()


def downgrade() -> None:
    op.drop_column("population_charges", "until")
    op.drop_table("removed_weights")


def _forget() -> None:
    ended = "round_id IN (SELECT id FROM rounds WHERE state IN ('published', 'abandoned', 'aggregated', 'evaluated'))"
    op.execute(
        f"UPDATE reports SET size = 0, utterances = 0, accepted_at = 0, loss = NULL, word_error = NULL WHERE {ended}"
    )
    op.execute(f"UPDATE aggregation_messages SET size = 0, received_at = 0 WHERE {ended}")
    op.execute("UPDATE rounds SET sampling_key = NULL WHERE state IN ('published', 'abandoned')")
    sqlite = op.get_bind().dialect.name == "sqlite"
    if sqlite:
        op.execute("DROP TRIGGER ledger_no_update")
    else:
        op.execute("ALTER TABLE ledger DISABLE TRIGGER USER")
    whole = "CAST(charged_at / 86400 AS INTEGER)" if sqlite else "floor(charged_at / 86400)"
    op.execute(f"UPDATE ledger SET charged_at = 86400.0 * {whole}")
    if sqlite:
        op.execute(
            "CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger "
            "BEGIN SELECT RAISE(ABORT, 'ledger is append-only'); END"
        )
    else:
        op.execute("ALTER TABLE ledger ENABLE TRIGGER USER")
