"""Teachers: the model that devices learn from beside another."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Written out: Alembic would rebuild the table on SQLite to add a reference, and other tables point to it.
    op.execute(
        "ALTER TABLE models ADD COLUMN teacher VARCHAR(64) CONSTRAINT fk_models_teacher REFERENCES models (version)"
    )


def downgrade() -> None:
    op.drop_column("models", "teacher")
