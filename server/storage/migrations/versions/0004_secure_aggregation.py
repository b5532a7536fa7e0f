"""Secure aggregation: groups of devices that add up their counts, and the messages between them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "aggregation_groups",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("round_id", sa.String(length=64), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("deadline", sa.Float(), nullable=False),
        sa.Column("roster", sa.String(), nullable=False),
        sa.Column("total", sa.LargeBinary(), nullable=True),
        sa.Column("note", sa.String(), nullable=False),
        sa.CheckConstraint(
            "stage IN ('shares', 'masked', 'consistency', 'unmasking', 'done', 'abandoned')",
            name=op.f("ck_aggregation_groups_stage"),
        ),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_aggregation_groups_round_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aggregation_groups")),
    )
    op.create_index(op.f("ix_aggregation_groups_round_id"), "aggregation_groups", ["round_id"])
    op.create_index(op.f("ix_aggregation_groups_stage"), "aggregation_groups", ["stage"])
    op.create_table(
        "aggregation_messages",
        sa.Column("round_id", sa.String(length=64), nullable=False),
        sa.Column("device_id", sa.String(length=64), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("group_id", sa.Integer(), nullable=True),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("received_at", sa.Float(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint(
            "stage IN ('keys', 'shares', 'masked', 'consistency', 'unmasking')",
            name=op.f("ck_aggregation_messages_stage"),
        ),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_aggregation_messages_device_id")),
        sa.ForeignKeyConstraint(["group_id"], ["aggregation_groups.id"], name=op.f("fk_aggregation_messages_group_id")),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_aggregation_messages_round_id")),
        sa.PrimaryKeyConstraint("round_id", "device_id", "stage", name=op.f("pk_aggregation_messages")),
    )
    op.create_index(op.f("ix_aggregation_messages_group_id"), "aggregation_messages", ["group_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_aggregation_messages_group_id"), "aggregation_messages")
    op.drop_table("aggregation_messages")
    op.drop_index(op.f("ix_aggregation_groups_stage"), "aggregation_groups")
    op.drop_index(op.f("ix_aggregation_groups_round_id"), "aggregation_groups")
    op.drop_table("aggregation_groups")
