"""When rounds last had a good tick, reports that are charged and in no sum, and devices left out of groups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ticks",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("good_at", sa.Float(), nullable=False),
        sa.Column("told_at", sa.Float(), nullable=False),
        sa.Column("busy", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_ticks")),
    )
    op.create_table(
        "exclusions",
        sa.Column("device_id", sa.String(length=64), nullable=False),
        sa.Column("round_id", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("excluded_at", sa.Float(), nullable=False),
        sa.Column("ends_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_exclusions_device_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_exclusions_round_id")),
        sa.PrimaryKeyConstraint("device_id", "round_id", name=op.f("pk_exclusions")),
    )
    op.add_column("reports", sa.Column("counted", sa.Boolean(), nullable=False, server_default=sa.true()))


def downgrade() -> None:
    op.drop_column("reports", "counted")
    op.drop_table("exclusions")
    op.drop_table("ticks")
