"""Reports and releases of words outside the public list."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rounds", sa.Column("words_reports", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("releases", sa.Column("words", sa.JSON(none_as_null=True), nullable=True))
    _streams("marginals", "deltas", "words")


def downgrade() -> None:
    _streams("marginals", "deltas")
    op.drop_column("releases", "words")
    op.drop_column("rounds", "words_reports")


def _streams(*names: str) -> None:
    """Which streams a report may be of. SQLite makes the table anew, and would not while the ledger's lines point to
    it: they do again afterwards, and the ledger, made anew too, is append-only as before."""
    sqlite = op.get_bind().dialect.name == "sqlite"
    constraint, pointer = op.f("ck_reports_stream"), op.f("fk_ledger_report_id")
    if sqlite:
        with op.batch_alter_table("ledger") as table:
            table.drop_constraint(pointer, type_="foreignkey")
    with op.batch_alter_table("reports", recreate="always" if sqlite else "never") as table:
        if not sqlite:  # there the copy has none
            table.drop_constraint(constraint, type_="check")
        table.create_check_constraint(constraint, f"stream IN {names!r}")
    if sqlite:
        with op.batch_alter_table("ledger") as table:
            table.create_foreign_key(pointer, "reports", ["report_id"], ["id"])
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER ledger_no_{change.lower()} BEFORE {change} ON ledger "
                "BEGIN SELECT RAISE(ABORT, 'ledger is append-only'); END"
            )
