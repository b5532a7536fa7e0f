"""Parameters of charges: how many coordinates one user moves, and a delta of the mechanism's own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Older lines stated the sensitivity of the whole report: one coordinate of that size, as they were accounted.
    op.add_column("ledger", sa.Column("coordinates", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("ledger", sa.Column("delta", sa.Float(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("ledger", "delta")
    op.drop_column("ledger", "coordinates")
