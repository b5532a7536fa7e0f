"""Canaries: models that a share of the devices got first, and what became of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "canaries",
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
        sa.CheckConstraint("state IN ('running', 'promoted', 'rolled_back')", name=op.f("ck_canaries_state")),
        sa.ForeignKeyConstraint(["base"], ["models.version"], name=op.f("fk_canaries_base")),
        sa.ForeignKeyConstraint(["version"], ["models.version"], name=op.f("fk_canaries_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_canaries")),
    )
    op.create_index(op.f("ix_canaries_state"), "canaries", ["state"], unique=False)
    op.create_table(
        "canary_devices",
        sa.Column("canary_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.String(length=64), nullable=False),
        sa.Column("arm", sa.String(length=8), nullable=False),
        sa.Column("first_seen", sa.Float(), nullable=False),
        sa.Column("last_seen", sa.Float(), nullable=False),
        sa.Column("installed", sa.Boolean(), nullable=False),
        sa.CheckConstraint("arm IN ('canary', 'control')", name=op.f("ck_canary_devices_arm")),
        sa.ForeignKeyConstraint(["canary_id"], ["canaries.id"], name=op.f("fk_canary_devices_canary_id")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_canary_devices_device_id")),
        sa.PrimaryKeyConstraint("canary_id", "device_id", name=op.f("pk_canary_devices")),
    )


def downgrade() -> None:
    op.drop_table("canary_devices")
    op.drop_index(op.f("ix_canaries_state"), table_name="canaries")
    op.drop_table("canaries")
