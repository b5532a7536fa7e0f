"""The tables. Times are seconds since the epoch; JSON columns hold settings as they were validated."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    true,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, *parts: Any, **options: Any) -> Table:
    return Table(name, metadata, *parts, **options)


def _columns(kind: Any, *names: str, nullable: bool = False) -> list[Column[Any]]:
    """Columns of one type."""
    return [Column(name, kind, nullable=nullable) for name in names]


def _one_of(name: str, *values: str) -> CheckConstraint:
    return CheckConstraint(f"{name} IN ({', '.join(repr(value) for value in values)})", name=name)


devices = _table(
    "devices",
    Column("id", String(64), primary_key=True),
    Column("public_key", LargeBinary(32), nullable=False, unique=True),
    Column("enrolled_at", Float, nullable=False),
    Column("revoked_at", Float),
    # Name of the token that let it in; none is the server's own.
    Column("enrolment_token", String(64), index=True),
    # When it last checked in, to the hour.
    Column("seen_at", Float, index=True),
)

nonces = _table(
    "nonces",
    Column("device_id", ForeignKey("devices.id"), primary_key=True),
    Column("nonce", String(128), primary_key=True),
    Column("expires_at", Float, nullable=False, index=True),
)

models = _table(
    "models",
    Column("version", String(64), primary_key=True),
    Column("parent", ForeignKey("models.version")),
    *_columns(String(64), "round_id", "optimizer_sha256", nullable=True),
    Column("sha256", String(64), nullable=False),
    Column("size", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    # The model that devices learn from beside this one; published with it, and taken back with it.
    Column("teacher", ForeignKey("models.version")),
    Column("figures", JSON, nullable=False),
    Column("note", String, nullable=False),
)

# Of weights and optimizer states that were deleted because nothing needs them: what else is missing was lost.
removed_weights = _table(
    "removed_weights", Column("sha256", String(64), primary_key=True), Column("removed_at", Float, nullable=False)
)

marginals = _table(
    "marginals",
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("parent", ForeignKey("marginals.version")),
    Column("round_id", String(64)),
    *_columns(String(64), "sha256", "words_digest"),
    Column("created_at", Float, nullable=False),
    # What the lineage has released so far: noised counts (int64, little-endian, fixed point) and one word's variance.
    *_columns(LargeBinary, "probabilities", "counts"),
    Column("variance", Float, nullable=False),
    Column("figures", JSON, nullable=False),
    Column("note", String, nullable=False),
)

rounds = _table(
    "rounds",
    Column("id", String(64), primary_key=True),
    Column("number", Integer, nullable=False, unique=True),
    Column("state", String(16), nullable=False, index=True),
    Column("settings", JSON, nullable=False),
    Column("base_model", ForeignKey("models.version")),
    Column("base_marginals", ForeignKey("marginals.version")),
    Column("created_at", Float, nullable=False),
    *_columns(Float, "opened_at", "deadline", nullable=True),
    *_columns(Integer, "marginals_reports", "deltas_reports", "words_reports"),
    Column("model_version", ForeignKey("models.version")),
    Column("marginals_version", ForeignKey("marginals.version")),
    Column("evaluation", JSON),
    Column("note", String, nullable=False),
    # Who is asked, where not everybody is: the key of the draw, and the number below which it must be. How many devices
    # there were to ask.
    Column("sampling_key", LargeBinary(32)),
    Column("sampling_threshold", BigInteger),
    Column("eligible", Integer),
    # 1 once its reports, its lines of the ledger and the like may be deleted, 2 once they are.
    Column("forgotten", Integer, nullable=False, server_default="0"),
    Index(None, "forgotten", "number"),
    _one_of("state", "planned", "open", "closing", "aggregated", "evaluated", "published", "abandoned"),
)

transitions = _table(
    "transitions",
    Column("id", Integer, primary_key=True),
    Column("round_id", ForeignKey("rounds.id"), nullable=False, index=True),
    *_columns(String(16), "source", "target"),
    Column("at", Float, nullable=False),
    Column("note", String, nullable=False),
)

reports = _table(
    "reports",
    Column("id", String(64), primary_key=True),
    Column("device_id", ForeignKey("devices.id"), nullable=False),
    Column("round_id", ForeignKey("rounds.id"), nullable=False),
    Column("stream", String(16), nullable=False),
    Column("body_sha256", String(64), nullable=False),
    *_columns(Integer, "size", "utterances"),
    Column("accepted_at", Float, nullable=False),
    # Raw contributions: a marginal report's counts, or its words, each counted once; or a delta's blob. Cleared once
    # the round is aggregated.
    Column("counts", JSON(none_as_null=True)),
    Column("blob", String),
    # What weighs a delta: models published since its own, and what the device told of its learning.
    *_columns(Float, "loss", "word_error", nullable=True),
    # Whether it is in what its round releases: not before a group has its sum, and never where it ends without.
    Column("counted", Boolean, nullable=False, server_default=true()),
    UniqueConstraint("device_id", "round_id", "stream"),
    Index(None, "round_id", "stream"),
    _one_of("stream", "marginals", "deltas", "words"),
)


def _charge(*, primary_key: bool = False) -> list[Column[Any]]:
    """The columns of a charge. coordinates: how many of that sensitivity one user moves; delta: the mechanism's own;
    epsilon, squared_ratio: what it adds to its stream, pure epsilons and squared Gaussian ratios; unbounded: no noise.
    """
    kinds: dict[str, Any] = {"mechanism": String(32), "trust": String(16), "coordinates": Integer, "unbounded": Boolean}
    names = ("mechanism", "trust", "sensitivity", "scale", "coordinates", "delta", "epsilon", "squared_ratio")
    return [
        Column(name, kinds.get(name, Float), primary_key=primary_key, nullable=False) for name in (*names, "unbounded")
    ]


ledger = _table(
    "ledger",
    Column("id", Integer, primary_key=True),
    Column("device_id", ForeignKey("devices.id"), nullable=False),
    Column("stream", String(16), nullable=False),
    Column("round_id", ForeignKey("rounds.id"), nullable=False),
    Column("report_id", ForeignKey("reports.id"), nullable=False),
    # 1 when the report is accepted; one more for every other draw of noise that it takes part in.
    Column("draw", Integer, nullable=False),
    *_charge(),
    Column("charged_at", Float, nullable=False),
    UniqueConstraint("report_id", "draw"),
    Index(None, "device_id", "stream"),
)

ledger_totals = _table(
    "ledger_totals",
    Column("device_id", ForeignKey("devices.id"), primary_key=True),
    Column("stream", String(16), primary_key=True),
    *_charge(primary_key=True),
    # How many lines of the ledger there ever were, and how many of them are deleted with the rounds that they are of.
    *_columns(Integer, "times", "settled"),
    sqlite_with_rowid=False,
)

charged_rounds = _table(
    "charged_rounds",
    Column("stream", String(16), primary_key=True),
    Column("round_id", ForeignKey("rounds.id"), primary_key=True),
    sqlite_with_rowid=False,
)

population_charges = _table(
    "population_charges",
    Column("id", Integer, primary_key=True),
    Column("round_id", ForeignKey("rounds.id"), nullable=False),
    Column("stream", String(16), nullable=False),
    # Charged is who was enrolled, and not revoked, at that time; so many there were.
    *_columns(Integer, "draw", "eligible"),
    Column("eligible_at", Float, nullable=False),
    # Charged is also who was enrolled after that and up to this time; none: nobody else.
    Column("until", Float),
    Column("sampling", Float, nullable=False),
    *_charge(),  # before sampling
    Column("charged_at", Float, nullable=False),
    UniqueConstraint("round_id", "stream", "draw"),
)

release_keys = _table(
    "release_keys",
    Column("id", Integer, primary_key=True),
    Column("round_id", ForeignKey("rounds.id"), nullable=False),
    Column("stream", String(16), nullable=False),
    Column("inputs_sha256", String(64), nullable=False),
    # Secret; forgotten once the release is stored or the round has ended without. Its digest stays.
    Column("key", LargeBinary(32)),
    Column("key_sha256", String(64), nullable=False, unique=True),
    Column("made_at", Float, nullable=False),
    UniqueConstraint("round_id", "stream", "inputs_sha256"),
)

releases = _table(
    "releases",
    Column("id", Integer, primary_key=True),
    Column("round_id", ForeignKey("rounds.id"), nullable=False),
    Column("stream", String(16), nullable=False),
    Column("inputs_sha256", String(64), nullable=False),
    Column("reports", Integer, nullable=False),
    Column("mechanism", JSON, nullable=False),
    # Noised marginal counts, int64 little-endian in fixed-point units; a delta release is the model it made; of words,
    # each that passed the threshold with the noised number of devices that named it.
    Column("counts", LargeBinary),
    Column("words", JSON(none_as_null=True)),
    *_columns(Float, "variance", "drawn_at"),
    Column("model_version", ForeignKey("models.version")),
    UniqueConstraint("round_id", "stream"),
)

publications = _table(
    "publications",
    Column("id", Integer, primary_key=True),
    Column("kind", String(16), nullable=False, index=True),
    Column("version", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Column("note", String, nullable=False),
)

aggregation_groups = _table(
    "aggregation_groups",
    Column("id", Integer, primary_key=True),
    Column("round_id", ForeignKey("rounds.id"), nullable=False, index=True),
    Column("stage", String(16), nullable=False, index=True),
    Column("deadline", Float, nullable=False),
    *_columns(String, "roster", "note"),
    # The sum of the survivors' vectors, int64 little-endian in fixed-point units, until the round's release has it.
    Column("total", LargeBinary),
    _one_of("stage", "shares", "masked", "consistency", "unmasking", "done", "abandoned"),
)

aggregation_messages = _table(
    "aggregation_messages",
    Column("round_id", ForeignKey("rounds.id"), primary_key=True),
    Column("device_id", ForeignKey("devices.id"), primary_key=True),
    Column("stage", String(16), primary_key=True),
    Column("group_id", ForeignKey("aggregation_groups.id"), index=True),
    Column("body_sha256", String(64), nullable=False),
    Column("size", Integer, nullable=False),
    Column("received_at", Float, nullable=False),
    # Exact bytes, until the group has ended.
    Column("body", LargeBinary),
    _one_of("stage", "keys", "shares", "masked", "consistency", "unmasking"),
)

exclusions = _table(
    "exclusions",
    Column("device_id", ForeignKey("devices.id"), primary_key=True),
    # In whose group it was found out.
    Column("round_id", ForeignKey("rounds.id"), primary_key=True),
    Column("reason", String, nullable=False),
    *_columns(Float, "excluded_at", "ends_at"),
)

ticks = _table(
    "ticks",
    # "loop", or the id of an unfinished round; written by the process that leads, where there are several.
    Column("name", String(64), primary_key=True),
    *_columns(Float, "good_at", "told_at"),
    # For how long it had been at one step then.
    Column("busy", Float),
)

update_metadata = _table(
    "update_metadata",
    Column("role", String(16), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    # Exact bytes, as signed; by which key; the newest publication that they know of.
    Column("body", LargeBinary, nullable=False),
    Column("key_id", String(64), nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("publication", Integer, nullable=False),
    _one_of("role", "targets", "snapshot", "timestamp"),
)

operators = _table(
    "operators",
    Column("name", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("token_sha256", String(64), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("created_by", String(64), nullable=False),
    Column("revoked_at", Float),
    _one_of("role", "viewer", "operator", "administrator"),
)

actions = _table(
    "actions",
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("operator", String(64), nullable=False),
    Column("action", String(32), nullable=False),
    Column("subject", String(128), nullable=False),
    Column("note", String, nullable=False),
)

enrolment_tokens = _table(
    "enrolment_tokens",
    Column("name", String(64), primary_key=True),
    Column("token_sha256", String(64), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("created_by", String(64), nullable=False),
    # How many devices it lets in, or any number; how many it did.
    Column("uses", Integer),
    Column("used", Integer, nullable=False),
    *_columns(Float, "expires_at", "revoked_at", nullable=True),
)

rollouts = _table(
    "rollouts",
    Column("id", Integer, primary_key=True),
    # What its devices have, and all others; a rollout is over when that changes.
    *(Column(name, ForeignKey("models.version"), nullable=False) for name in ("version", "base")),
    Column("settings", JSON, nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("looks", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("figures", JSON, nullable=False),
    Column("note", String, nullable=False),
    _one_of("state", "running", "promoted", "rolled_back"),
)

rollout_devices = _table(
    "rollout_devices",
    Column("rollout_id", ForeignKey("rollouts.id"), primary_key=True),
    Column("device_id", ForeignKey("devices.id"), primary_key=True),
    Column("arm", String(8), nullable=False),
    *_columns(Float, "first_seen", "last_seen"),
    # Whether the device said, when it came last, that it has what its arm is to have.
    Column("installed", Boolean, nullable=False),
    _one_of("arm", "rollout", "control"),
)
