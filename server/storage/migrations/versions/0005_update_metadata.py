"""Signed metadata of updates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "update_metadata",
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("publication", sa.Integer(), nullable=False),
        sa.CheckConstraint("role IN ('targets', 'snapshot', 'timestamp')", name=op.f("ck_update_metadata_role")),
        sa.PrimaryKeyConstraint("role", "version", name=op.f("pk_update_metadata")),
    )


def downgrade() -> None:
    op.drop_table("update_metadata")
