"""The tables. Times are seconds since the epoch; JSON columns hold settings as they were validated."""

from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, *parts: Any, **options: Any) -> sa.Table:
    return sa.Table(name, metadata, *parts, **options)


def _columns(kind: Any, *names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    """Columns of one type."""
    return [sa.Column(name, kind, nullable=nullable) for name in names]


def _one_of(name: str, *values: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{name} IN ({', '.join(repr(value) for value in values)})", name=name)


devices = _table(
    "devices",
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("public_key", sa.LargeBinary(32), nullable=False, unique=True),
    sa.Column("enrolled_at", sa.Float, nullable=False),
    sa.Column("revoked_at", sa.Float),
    # Name of the token that let it in; none is the server's own.
    sa.Column("enrolment_token", sa.String(64), index=True),
    # When it last checked in, to the hour.
    sa.Column("seen_at", sa.Float, index=True),
)

nonces = _table(
    "nonces",
    sa.Column("device_id", sa.ForeignKey("devices.id"), primary_key=True),
    sa.Column("nonce", sa.String(128), primary_key=True),
    sa.Column("expires_at", sa.Float, nullable=False, index=True),
)

models = _table(
    "models",
    sa.Column("version", sa.String(64), primary_key=True),
    sa.Column("parent", sa.ForeignKey("models.version")),
    *_columns(sa.String(64), "round_id", "optimizer_sha256", nullable=True),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    # The model that devices learn from beside this one; published with it, and taken back with it.
    sa.Column("teacher", sa.ForeignKey("models.version")),
    sa.Column("figures", sa.JSON, nullable=False),
    sa.Column("note", sa.String, nullable=False),
)

# Of weights and optimizer states that were deleted because nothing needs them: what else is missing was lost.
removed_weights = _table(
    "removed_weights",
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("removed_at", sa.Float, nullable=False),
)

marginals = _table(
    "marginals",
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("parent", sa.ForeignKey("marginals.version")),
    sa.Column("round_id", sa.String(64)),
    *_columns(sa.String(64), "sha256", "words_digest"),
    sa.Column("created_at", sa.Float, nullable=False),
    # What the lineage has released so far: noised counts (int64, little-endian, fixed point) and one word's variance.
    *_columns(sa.LargeBinary, "probabilities", "counts"),
    sa.Column("variance", sa.Float, nullable=False),
    sa.Column("figures", sa.JSON, nullable=False),
    sa.Column("note", sa.String, nullable=False),
)

rounds = _table(
    "rounds",
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False, unique=True),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("settings", sa.JSON, nullable=False),
    sa.Column("base_model", sa.ForeignKey("models.version")),
    sa.Column("base_marginals", sa.ForeignKey("marginals.version")),
    sa.Column("created_at", sa.Float, nullable=False),
    *_columns(sa.Float, "opened_at", "deadline", nullable=True),
    *_columns(sa.Integer, "marginals_reports", "deltas_reports", "words_reports"),
    sa.Column("model_version", sa.ForeignKey("models.version")),
    sa.Column("marginals_version", sa.ForeignKey("marginals.version")),
    sa.Column("evaluation", sa.JSON),
    sa.Column("note", sa.String, nullable=False),
    # Who is asked, where not everybody is: the key of the draw, and the number below which it must be. How many devices
    # there were to ask.
    sa.Column("sampling_key", sa.LargeBinary(32)),
    sa.Column("sampling_threshold", sa.BigInteger),
    sa.Column("eligible", sa.Integer),
    # 1 once its reports, its lines of the ledger and the like may be deleted, 2 once they are.
    sa.Column("forgotten", sa.Integer, nullable=False, server_default="0"),
    sa.Index(None, "forgotten", "number"),
    _one_of("state", "planned", "open", "closing", "aggregated", "evaluated", "published", "abandoned"),
)

transitions = _table(
    "transitions",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("round_id", sa.ForeignKey("rounds.id"), nullable=False, index=True),
    *_columns(sa.String(16), "source", "target"),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("note", sa.String, nullable=False),
)

reports = _table(
    "reports",
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("device_id", sa.ForeignKey("devices.id"), nullable=False),
    sa.Column("round_id", sa.ForeignKey("rounds.id"), nullable=False),
    sa.Column("stream", sa.String(16), nullable=False),
    sa.Column("body_sha256", sa.String(64), nullable=False),
    *_columns(sa.Integer, "size", "utterances"),
    sa.Column("accepted_at", sa.Float, nullable=False),
    # Raw contributions: a marginal report's counts, or its words, each counted once; or a delta's blob. Cleared once
    # the round is aggregated.
    sa.Column("counts", sa.JSON(none_as_null=True)),
    sa.Column("blob", sa.String),
    # What weighs a delta: models published since its own, and what the device told of its learning.
    *_columns(sa.Float, "loss", "word_error", nullable=True),
    # Whether it is in what its round releases: not before a group has its sum, and never where it ends without.
    sa.Column("counted", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.UniqueConstraint("device_id", "round_id", "stream"),
    sa.Index(None, "round_id", "stream"),
    _one_of("stream", "marginals", "deltas", "words"),
)


def _charge(*, primary_key: bool = False) -> list[sa.Column[Any]]:
    """The columns of a charge. coordinates: how many of that sensitivity one user moves; delta: the mechanism's own;
    epsilon, squared_ratio: what it adds to its stream, pure epsilons and squared Gaussian ratios; unbounded: no noise.
    """
    names = ("mechanism", "trust", "sensitivity", "scale", "coordinates", "delta", "epsilon", "squared_ratio")
    kinds: dict[str, Any] = dict.fromkeys(names, sa.Float)
    kinds |= {"mechanism": sa.String(32), "trust": sa.String(16), "coordinates": sa.Integer, "unbounded": sa.Boolean}
    return [sa.Column(name, kind, primary_key=primary_key, nullable=False) for name, kind in kinds.items()]


ledger = _table(
    "ledger",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("device_id", sa.ForeignKey("devices.id"), nullable=False),
    sa.Column("stream", sa.String(16), nullable=False),
    sa.Column("round_id", sa.ForeignKey("rounds.id"), nullable=False),
    sa.Column("report_id", sa.ForeignKey("reports.id"), nullable=False),
    # 1 when the report is accepted; one more for every other draw of noise that it takes part in.
    sa.Column("draw", sa.Integer, nullable=False),
    *_charge(),
    sa.Column("charged_at", sa.Float, nullable=False),
    sa.UniqueConstraint("report_id", "draw"),
    sa.Index(None, "device_id", "stream"),
)

ledger_totals = _table(
    "ledger_totals",
    sa.Column("device_id", sa.ForeignKey("devices.id"), primary_key=True),
    sa.Column("stream", sa.String(16), primary_key=True),
    *_charge(primary_key=True),
    # How many lines of the ledger there ever were, and how many of them are deleted with the rounds that they are of.
    *_columns(sa.Integer, "times", "settled"),
    sqlite_with_rowid=False,
)

charged_rounds = _table(
    "charged_rounds",
    sa.Column("stream", sa.String(16), primary_key=True),
    sa.Column("round_id", sa.ForeignKey("rounds.id"), primary_key=True),
    sqlite_with_rowid=False,
)

population_charges = _table(
    "population_charges",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("round_id", sa.ForeignKey("rounds.id"), nullable=False),
    sa.Column("stream", sa.String(16), nullable=False),
    # Charged is who was enrolled, and not revoked, at that time; so many there were.
    *_columns(sa.Integer, "draw", "eligible"),
    sa.Column("eligible_at", sa.Float, nullable=False),
    # Charged is also who was enrolled after that and up to this time; none: nobody else.
    sa.Column("until", sa.Float),
    sa.Column("sampling", sa.Float, nullable=False),
    *_charge(),  # before sampling
    sa.Column("charged_at", sa.Float, nullable=False),
    sa.UniqueConstraint("round_id", "stream", "draw"),
)

release_keys = _table(
    "release_keys",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("round_id", sa.ForeignKey("rounds.id"), nullable=False),
    sa.Column("stream", sa.String(16), nullable=False),
    sa.Column("inputs_sha256", sa.String(64), nullable=False),
    # Secret; forgotten once the release is stored or the round has ended without. Its digest stays.
    sa.Column("key", sa.LargeBinary(32)),
    sa.Column("key_sha256", sa.String(64), nullable=False, unique=True),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.UniqueConstraint("round_id", "stream", "inputs_sha256"),
)

releases = _table(
    "releases",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("round_id", sa.ForeignKey("rounds.id"), nullable=False),
    sa.Column("stream", sa.String(16), nullable=False),
    sa.Column("inputs_sha256", sa.String(64), nullable=False),
    sa.Column("reports", sa.Integer, nullable=False),
    sa.Column("mechanism", sa.JSON, nullable=False),
    # Noised marginal counts, int64 little-endian in fixed-point units; a delta release is the model it made; of words,
    # each that passed the threshold with the noised number of devices that named it.
    sa.Column("counts", sa.LargeBinary),
    sa.Column("words", sa.JSON(none_as_null=True)),
    *_columns(sa.Float, "variance", "drawn_at"),
    sa.Column("model_version", sa.ForeignKey("models.version")),
    sa.UniqueConstraint("round_id", "stream"),
)

publications = _table(
    "publications",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False, index=True),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("note", sa.String, nullable=False),
)

aggregation_groups = _table(
    "aggregation_groups",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("round_id", sa.ForeignKey("rounds.id"), nullable=False, index=True),
    sa.Column("stage", sa.String(16), nullable=False, index=True),
    sa.Column("deadline", sa.Float, nullable=False),
    *_columns(sa.String, "roster", "note"),
    # The sum of the survivors' vectors, int64 little-endian in fixed-point units, until the round's release has it.
    sa.Column("total", sa.LargeBinary),
    _one_of("stage", "shares", "masked", "consistency", "unmasking", "done", "abandoned"),
)

aggregation_messages = _table(
    "aggregation_messages",
    sa.Column("round_id", sa.ForeignKey("rounds.id"), primary_key=True),
    sa.Column("device_id", sa.ForeignKey("devices.id"), primary_key=True),
    sa.Column("stage", sa.String(16), primary_key=True),
    sa.Column("group_id", sa.ForeignKey("aggregation_groups.id"), index=True),
    sa.Column("body_sha256", sa.String(64), nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("received_at", sa.Float, nullable=False),
    # Exact bytes, until the group has ended.
    sa.Column("body", sa.LargeBinary),
    _one_of("stage", "keys", "shares", "masked", "consistency", "unmasking"),
)

exclusions = _table(
    "exclusions",
    sa.Column("device_id", sa.ForeignKey("devices.id"), primary_key=True),
    # In whose group it was found out.
    sa.Column("round_id", sa.ForeignKey("rounds.id"), primary_key=True),
    sa.Column("reason", sa.String, nullable=False),
    *_columns(sa.Float, "excluded_at", "ends_at"),
)

ticks = _table(
    "ticks",
    # "loop", or the id of an unfinished round; written by the process that leads, where there are several.
    sa.Column("name", sa.String(64), primary_key=True),
    *_columns(sa.Float, "good_at", "told_at"),
    # For how long it had been at one step then.
    sa.Column("busy", sa.Float),
)

update_metadata = _table(
    "update_metadata",
    sa.Column("role", sa.String(16), primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    # Exact bytes, as signed; by which key; the newest publication that they know of.
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("key_id", sa.String(64), nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Column("publication", sa.Integer, nullable=False),
    _one_of("role", "targets", "snapshot", "timestamp"),
)

operators = _table(
    "operators",
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("token_sha256", sa.String(64), nullable=False, unique=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("created_by", sa.String(64), nullable=False),
    sa.Column("revoked_at", sa.Float),
    _one_of("role", "viewer", "operator", "administrator"),
)

actions = _table(
    "actions",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("operator", sa.String(64), nullable=False),
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("subject", sa.String(128), nullable=False),
    sa.Column("note", sa.String, nullable=False),
)

enrolment_tokens = _table(
    "enrolment_tokens",
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("token_sha256", sa.String(64), nullable=False, unique=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("created_by", sa.String(64), nullable=False),
    # How many devices it lets in, or any number; how many it did.
    sa.Column("uses", sa.Integer),
    sa.Column("used", sa.Integer, nullable=False),
    *_columns(sa.Float, "expires_at", "revoked_at", nullable=True),
)

rollouts = _table(
    "rollouts",
    sa.Column("id", sa.Integer, primary_key=True),
    # What its devices have, and all others; a rollout is over when that changes.
    *(sa.Column(name, sa.ForeignKey("models.version"), nullable=False) for name in ("version", "base")),
    sa.Column("settings", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("looks", sa.Integer, nullable=False),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("ended_at", sa.Float),
    sa.Column("figures", sa.JSON, nullable=False),
    sa.Column("note", sa.String, nullable=False),
    _one_of("state", "running", "promoted", "rolled_back"),
)

rollout_devices = _table(
    "rollout_devices",
    sa.Column("rollout_id", sa.ForeignKey("rollouts.id"), primary_key=True),
    sa.Column("device_id", sa.ForeignKey("devices.id"), primary_key=True),
    sa.Column("arm", sa.String(8), nullable=False),
    *_columns(sa.Float, "first_seen", "last_seen"),
    # Whether the device said, when it came last, that it has what its arm is to have.
    sa.Column("installed", sa.Boolean, nullable=False),
    _one_of("arm", "rollout", "control"),
)
