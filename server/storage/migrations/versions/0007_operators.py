"""Named operators, what each did, and enrolment tokens with an end."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "operators",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'administrator')", name=op.f("ck_operators_role")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_operators")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_operators_token_sha256")),
    )
    op.create_table(
        "actions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("operator", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=128), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_actions")),
    )
    op.create_table(
        "enrolment_tokens",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=True),
        sa.Column("used", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_enrolment_tokens")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_enrolment_tokens_token_sha256")),
    )
    op.add_column("devices", sa.Column("enrolment_token", sa.String(length=64), nullable=True))
    for change in ("UPDATE", "DELETE"):
        _refuse("actions", change)


def downgrade() -> None:
    op.drop_column("devices", "enrolment_token")
    op.drop_table("enrolment_tokens")
    op.drop_table("actions")
    op.drop_table("operators")


def _refuse(table: str, change: str) -> None:
    """Have the database itself keep a table append-only."""
    trigger = f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
    match op.get_bind().dialect.name:
        case "sqlite":
            op.execute(f"{trigger} BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END")
        case "postgresql":
            op.execute(f"{trigger} FOR EACH ROW EXECUTE FUNCTION refuse_change()")
