"""The first schema, and the triggers by which the database itself keeps append-only what must be.

Nothing was released before it, so the tables are those of :mod:`server.storage.schema`. A later revision has to write
them out here, as they were, before it changes them there."""

from alembic import op

from server.storage.schema import ledger_totals, metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = ("actions", "ledger", "population_charges", "publications", "release_keys", "releases", "transitions")
FORGOTTEN = ("ledger", "release_keys", "releases", "transitions")
"""Tables whose rows may be deleted of rounds that are forgotten, and of no other."""
FUNCTIONS = {
    "refuse_change": "",
    "refuse_unless_forgotten": "IF (SELECT forgotten FROM rounds WHERE id = OLD.round_id) > 0 THEN RETURN OLD; END IF;",
}


def upgrade() -> None:
    metadata.create_all(op.get_bind())
    if op.get_bind().dialect.name == "postgresql":
        for name, exception in FUNCTIONS.items():
            _make_function(name, f"{exception} RAISE EXCEPTION '% is append-only', TG_TABLE_NAME")
    for table in APPEND_ONLY:
        # A key of noise is forgotten: that is its only change.
        columns = " OF id, round_id, stream, inputs_sha256, key_sha256, made_at" if table == "release_keys" else ""
        _refuse(table, "no_update", f"UPDATE{columns}", "refuse_change")
        if table in FORGOTTEN:
            kept = "NOT EXISTS (SELECT 1 FROM rounds WHERE id = OLD.round_id AND forgotten > 0)"
            _refuse(table, "no_delete", "DELETE", "refuse_unless_forgotten", when=kept)
        else:
            _refuse(table, "no_delete", "DELETE", "refuse_change")
    _let_totals_only_grow()


def downgrade() -> None:
    metadata.drop_all(op.get_bind())
    if op.get_bind().dialect.name == "postgresql":
        for name in (*FUNCTIONS, "refuse_less"):
            op.execute(f"DROP FUNCTION {name}()")


def _let_totals_only_grow() -> None:
    """Refuse a total that shrinks, changes what it is of, or goes."""
    less = " OR ".join(
        f"NEW.{column.name} {'<>' if column.primary_key else '<'} OLD.{column.name}" for column in ledger_totals.columns
    )
    refusal = "ledger_totals only grow"
    if op.get_bind().dialect.name == "postgresql":
        _make_function(
            "refuse_less", f"IF TG_OP = 'UPDATE' AND NOT ({less}) THEN RETURN NEW; END IF; RAISE EXCEPTION '{refusal}'"
        )
    _refuse("ledger_totals", "grow", "UPDATE", "refuse_less", when=less, refusal=refusal)
    _refuse("ledger_totals", "no_delete", "DELETE", "refuse_less", refusal=refusal)


def _make_function(name: str, body: str) -> None:
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} "
        "USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )


def _refuse(table: str, name: str, change: str, function: str, *, when: str = "", refusal: str = "") -> None:
    """A trigger against a change: PostgreSQL asks the function; SQLite aborts, ``when`` something holds if given."""
    trigger = f"CREATE TRIGGER {table}_{name} BEFORE {change} ON {table} "
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"{trigger} FOR EACH ROW EXECUTE FUNCTION {function}()")
    else:
        condition = f"WHEN {when} " if when else ""
        op.execute(f"{trigger}{condition}BEGIN SELECT RAISE(ABORT, '{refusal or f'{table} is append-only'}'); END")
