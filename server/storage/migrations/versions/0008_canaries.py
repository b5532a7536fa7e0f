"""Rollouts: models that a share of the devices got first, and what became of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rollouts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("base", sa.String(length=64), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("looks", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.CheckConstraint("state IN ('running', 'promoted', 'rolled_back')", name=op.f("ck_rollouts_state")),
        sa.ForeignKeyConstraint(["base"], ["models.version"], name=op.f("fk_rollouts_base")),
        sa.ForeignKeyConstraint(["version"], ["models.version"], name=op.f("fk_rollouts_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
    )
    op.create_index(op.f("ix_rollouts_state"), "rollouts", ["state"], unique=False)
    op.create_table(
        "rollout_devices",
        sa.Column("rollout_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.String(length=64), nullable=False),
        sa.Column("arm", sa.String(length=8), nullable=False),
        sa.Column("first_seen", sa.Float(), nullable=False),
        sa.Column("last_seen", sa.Float(), nullable=False),
        sa.Column("installed", sa.Boolean(), nullable=False),
        sa.CheckConstraint("arm IN ('rollout', 'control')", name=op.f("ck_rollout_devices_arm")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_rollout_devices_rollout_id")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_rollout_devices_device_id")),
        sa.PrimaryKeyConstraint("rollout_id", "device_id", name=op.f("pk_rollout_devices")),
    )


def downgrade() -> None:
    op.drop_table("rollout_devices")
    op.drop_index(op.f("ix_rollouts_state"), table_name="rollouts")
    op.drop_table("rollouts")
