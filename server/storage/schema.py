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

__all__ = [
    "actions",
    "aggregation_groups",
    "aggregation_messages",
    "rollouts",
    "rollout_devices",
    "charged_rounds",
    "devices",
    "enrolment_tokens",
    "exclusions",
    "ledger",
    "ledger_totals",
    "marginals",
    "metadata",
    "models",
    "nonces",
    "operators",
    "population_charges",
    "publications",
    "release_keys",
    "releases",
    "removed_weights",
    "reports",
    "rounds",
    "ticks",
    "transitions",
    "update_metadata",
]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

devices = Table(
    "devices",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("public_key", LargeBinary(32), nullable=False, unique=True),
    Column("enrolled_at", Float, nullable=False),
    Column("revoked_at", Float),
    # Name of the token that let it in; none is the server's own.
    Column("enrolment_token", String(64), index=True),
    # When it last checked in, to the hour.
    Column("seen_at", Float, index=True),
)

nonces = Table(
    "nonces",
    metadata,
    Column("device_id", ForeignKey("devices.id"), primary_key=True),
    Column("nonce", String(128), primary_key=True),
    Column("expires_at", Float, nullable=False, index=True),
)

models = Table(
    "models",
    metadata,
    Column("version", String(64), primary_key=True),
    Column("parent", ForeignKey("models.version")),
    Column("round_id", String(64)),
    Column("sha256", String(64), nullable=False),
    Column("size", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("optimizer_sha256", String(64)),
    # The model that devices learn from beside this one; published with it, and taken back with it.
    Column("teacher", ForeignKey("models.version")),
    Column("figures", JSON, nullable=False),
    Column("note", String, nullable=False),
)

removed_weights = Table(
    "removed_weights",
    metadata,
    # Of weights and optimizer states that were deleted because nothing needs them: what else is missing was lost.
    Column("sha256", String(64), primary_key=True),
    Column("removed_at", Float, nullable=False),
)

marginals = Table(
    "marginals",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("parent", ForeignKey("marginals.version")),
    Column("round_id", String(64)),
    Column("sha256", String(64), nullable=False),
    Column("words_digest", String(64), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("probabilities", LargeBinary, nullable=False),
    # What the lineage has released so far: noised counts (int64, little-endian, fixed point) and one word's variance.
    Column("counts", LargeBinary, nullable=False),
    Column("variance", Float, nullable=False),
    Column("figures", JSON, nullable=False),
    Column("note", String, nullable=False),
)

rounds = Table(
    "rounds",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("number", Integer, nullable=False, unique=True),
    Column("state", String(16), nullable=False, index=True),
    Column("settings", JSON, nullable=False),
    Column("base_model", ForeignKey("models.version")),
    Column("base_marginals", ForeignKey("marginals.version")),
    Column("created_at", Float, nullable=False),
    Column("opened_at", Float),
    Column("deadline", Float),
    Column("marginals_reports", Integer, nullable=False),
    Column("deltas_reports", Integer, nullable=False),
    Column("words_reports", Integer, nullable=False),
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
    CheckConstraint(
        "state IN ('planned', 'open', 'closing', 'aggregated', 'evaluated', 'published', 'abandoned')", name="state"
    ),
)

transitions = Table(
    "transitions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("round_id", ForeignKey("rounds.id"), nullable=False, index=True),
    Column("source", String(16), nullable=False),
    Column("target", String(16), nullable=False),
    Column("at", Float, nullable=False),
    Column("note", String, nullable=False),
)

reports = Table(
    "reports",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("device_id", ForeignKey("devices.id"), nullable=False),
    Column("round_id", ForeignKey("rounds.id"), nullable=False),
    Column("stream", String(16), nullable=False),
    Column("body_sha256", String(64), nullable=False),
    Column("size", Integer, nullable=False),
    Column("utterances", Integer, nullable=False),
    Column("accepted_at", Float, nullable=False),
    # Raw contributions: a marginal report's counts, or its words, each counted once; or a delta's blob. Cleared once
    # the round is aggregated.
    Column("counts", JSON(none_as_null=True)),
    Column("blob", String),
    # What weighs a delta: models published since its own, and what the device told of its learning.
    Column("loss", Float),
    Column("word_error", Float),
    # Whether it is in what its round releases: not before a group has its sum, and never where it ends without.
    Column("counted", Boolean, nullable=False, server_default=true()),
    UniqueConstraint("device_id", "round_id", "stream"),
    Index(None, "round_id", "stream"),
    CheckConstraint("stream IN ('marginals', 'deltas', 'words')", name="stream"),
)


def _charge(*, primary_key: bool = False) -> list[Column[Any]]:
    """The columns of a charge. coordinates: how many of that sensitivity one user moves; delta: the mechanism's own;
    epsilon, squared_ratio: what it adds to its stream, pure epsilons and squared Gaussian ratios; unbounded: no noise.
    """
    types: dict[str, Any] = {
        "mechanism": String(32),
        "trust": String(16),
        "sensitivity": Float,
        "scale": Float,
        "coordinates": Integer,
        "delta": Float,
        "epsilon": Float,
        "squared_ratio": Float,
        "unbounded": Boolean,
    }
    return [Column(name, kind, primary_key=primary_key, nullable=False) for name, kind in types.items()]


ledger = Table(
    "ledger",
    metadata,
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

ledger_totals = Table(
    "ledger_totals",
    metadata,
    Column("device_id", ForeignKey("devices.id"), primary_key=True),
    Column("stream", String(16), primary_key=True),
    *_charge(primary_key=True),
    # How many lines of the ledger there ever were, and how many of them are deleted with the rounds that they are of.
    Column("times", Integer, nullable=False),
    Column("settled", Integer, nullable=False),
    sqlite_with_rowid=False,
)

charged_rounds = Table(
    "charged_rounds",
    metadata,
    Column("stream", String(16), primary_key=True),
    Column("round_id", ForeignKey("rounds.id"), primary_key=True),
    sqlite_with_rowid=False,
)

population_charges = Table(
    "population_charges",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("round_id", ForeignKey("rounds.id"), nullable=False),
    Column("stream", String(16), nullable=False),
    Column("draw", Integer, nullable=False),
    # Charged is who was enrolled, and not revoked, at that time; so many there were.
    Column("eligible", Integer, nullable=False),
    Column("eligible_at", Float, nullable=False),
    # Charged is also who was enrolled after that and up to this time; none: nobody else.
    Column("until", Float),
    Column("sampling", Float, nullable=False),
    *_charge(),  # before sampling
    Column("charged_at", Float, nullable=False),
    UniqueConstraint("round_id", "stream", "draw"),
)

release_keys = Table(
    "release_keys",
    metadata,
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

releases = Table(
    "releases",
    metadata,
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
    Column("variance", Float, nullable=False),
    Column("model_version", ForeignKey("models.version")),
    Column("drawn_at", Float, nullable=False),
    UniqueConstraint("round_id", "stream"),
)

publications = Table(
    "publications",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String(16), nullable=False, index=True),
    Column("version", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Column("note", String, nullable=False),
)

aggregation_groups = Table(
    "aggregation_groups",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("round_id", ForeignKey("rounds.id"), nullable=False, index=True),
    Column("stage", String(16), nullable=False, index=True),
    Column("deadline", Float, nullable=False),
    Column("roster", String, nullable=False),
    # The sum of the survivors' vectors, int64 little-endian in fixed-point units, until the round's release has it.
    Column("total", LargeBinary),
    Column("note", String, nullable=False),
    CheckConstraint("stage IN ('shares', 'masked', 'consistency', 'unmasking', 'done', 'abandoned')", name="stage"),
)

aggregation_messages = Table(
    "aggregation_messages",
    metadata,
    Column("round_id", ForeignKey("rounds.id"), primary_key=True),
    Column("device_id", ForeignKey("devices.id"), primary_key=True),
    Column("stage", String(16), primary_key=True),
    Column("group_id", ForeignKey("aggregation_groups.id"), index=True),
    Column("body_sha256", String(64), nullable=False),
    Column("size", Integer, nullable=False),
    Column("received_at", Float, nullable=False),
    # Exact bytes, until the group has ended.
    Column("body", LargeBinary),
    CheckConstraint("stage IN ('keys', 'shares', 'masked', 'consistency', 'unmasking')", name="stage"),
)

exclusions = Table(
    "exclusions",
    metadata,
    Column("device_id", ForeignKey("devices.id"), primary_key=True),
    # In whose group it was found out.
    Column("round_id", ForeignKey("rounds.id"), primary_key=True),
    Column("reason", String, nullable=False),
    Column("excluded_at", Float, nullable=False),
    Column("ends_at", Float, nullable=False),
)

ticks = Table(
    "ticks",
    metadata,
    # "loop", or the id of an unfinished round; written by the process that leads, where there are several.
    Column("name", String(64), primary_key=True),
    Column("good_at", Float, nullable=False),
    Column("told_at", Float, nullable=False),
    # For how long it had been at one step then.
    Column("busy", Float),
)

update_metadata = Table(
    "update_metadata",
    metadata,
    Column("role", String(16), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    # Exact bytes, as signed; by which key; the newest publication that they know of.
    Column("body", LargeBinary, nullable=False),
    Column("key_id", String(64), nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("publication", Integer, nullable=False),
    CheckConstraint("role IN ('targets', 'snapshot', 'timestamp')", name="role"),
)

operators = Table(
    "operators",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("token_sha256", String(64), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("created_by", String(64), nullable=False),
    Column("revoked_at", Float),
    CheckConstraint("role IN ('viewer', 'operator', 'administrator')", name="role"),
)

actions = Table(
    "actions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("operator", String(64), nullable=False),
    Column("action", String(32), nullable=False),
    Column("subject", String(128), nullable=False),
    Column("note", String, nullable=False),
)

enrolment_tokens = Table(
    "enrolment_tokens",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("token_sha256", String(64), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Column("created_by", String(64), nullable=False),
    # How many devices it lets in, or any number; how many it did.
    Column("uses", Integer),
    Column("used", Integer, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("version", ForeignKey("models.version"), nullable=False),
    # What all other devices have; a rollout is over when that changes.
    Column("base", ForeignKey("models.version"), nullable=False),
    Column("settings", JSON, nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("looks", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("figures", JSON, nullable=False),
    Column("note", String, nullable=False),
    CheckConstraint("state IN ('running', 'promoted', 'rolled_back')", name="state"),
)

rollout_devices = Table(
    "rollout_devices",
    metadata,
    Column("rollout_id", ForeignKey("rollouts.id"), primary_key=True),
    Column("device_id", ForeignKey("devices.id"), primary_key=True),
    Column("arm", String(8), nullable=False),
    Column("first_seen", Float, nullable=False),
    Column("last_seen", Float, nullable=False),
    # Whether the device said, when it came last, that it has what its arm is to have.
    Column("installed", Boolean, nullable=False),
    CheckConstraint("arm IN ('rollout', 'control')", name="arm"),
)
