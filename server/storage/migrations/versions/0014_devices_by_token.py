"""How many devices a token let in is asked whenever one enrols."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_devices_enrolment_token"), "devices", ["enrolment_token"])


def downgrade() -> None:
    op.drop_index(op.f("ix_devices_enrolment_token"), "devices")
