"""What operators send and are answered, as data: the routes read and write these, the client gives them back typed.

Fields that a newer server adds are kept as they come. A number that may be infinite travels as ``"Infinity"``; times
are seconds since the epoch."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from device_sdk.wire.messages import Identifier
from server.operators.accounts import Role
from server.plans.round import RolloutSettings, RoundSettings, RoundState

Level = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["Infinity"]}]})]


class Request(BaseModel):
    """Something an operator asks for: what it does not know is refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RoundRequest(Request):
    """A round to create. open: whether it takes reports at once."""

    settings: RoundSettings = RoundSettings()
    open: bool = True


class MarginalPush(Request):
    """A distribution made elsewhere. probabilities: float64 little-endian, base64, over the public word list."""

    probabilities: str
    note: str = ""
    publish: bool = True


class RolloutRequest(Request):
    """A registered model that some of the devices are to get first. settings: those that are not given are the server's
    own."""

    version: Identifier
    settings: RolloutSettings | None = None
    note: str = ""


class OperatorRequest(Request):
    """An operator to add. name: of a person or a program, never given twice."""

    name: Identifier
    role: Role


class EnrolmentTokenRequest(Request):
    """A token to make. uses: how many devices it lets in, null for any number; seconds: how long, null for ever."""

    name: Identifier
    uses: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = 1000
    seconds: Annotated[float, Field(gt=0, le=366 * 86400)] | None = None


class Answer(BaseModel):
    """Something an operator is told."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Group(Answer):
    """Devices of a round that add up their counts together."""

    stage: str
    deadline: float
    note: str
    devices: int


class Move(Answer):
    """A step of a round from one state to another. at: seconds since the epoch."""

    source: RoundState
    target: RoundState
    at: float
    note: str


class Release(Answer):
    """What a round let out of a stream. words: new ones, with the noised number of devices that named each."""

    reports: int
    inputs_sha256: str
    mechanism: dict[str, Any]
    words: dict[str, int] | None = None
    drawn_at: float


class Round(Answer):
    """A round: its settings, how it moved, what it released. eligible: devices that could be asked when it opened, of a
    round that asks some of them. Times in seconds since the epoch."""

    id: str
    number: int
    state: RoundState
    settings: dict[str, Any]
    base_model: str | None
    base_marginals: int | None
    opened_at: float | None
    deadline: float | None
    eligible: int | None
    reports: dict[str, int]
    model_version: str | None
    teacher_version: str | None
    marginals_version: int | None
    groups: list[Group]
    evaluation: dict[str, Any] | None
    note: str
    transitions: list[Move]
    releases: dict[str, Release]


class Rounds(Answer):
    """The newest first."""

    rounds: list[Round]


class Status(Answer):
    """What is current, and which rounds are under way."""

    model_version: str
    teacher_version: str | None
    marginals_version: int
    devices: int
    since: float | None
    rounds: list[Round]


class Epsilon(Answer):
    """What somebody's part in a stream may tell, in nats; infinite without noise. delta: at which that holds."""

    epsilon: Level
    delta: Level
    utterance_epsilon: Level
    utterance_delta: Level
    count_epsilon: Level | None
    rounds: int


class StreamPrivacy(Epsilon):
    """Of the device that spent most, with what the numbers mean."""

    adjacency: str
    utterance_adjacency: str
    sampling: str
    trust_model: str
    devices: int


class DevicePrivacy(Epsilon):
    """Of one device."""

    device_id: str
    stream: str


class Privacy(Answer):
    """The ledger: by stream, and a line for every device and stream. caps: by stream."""

    streams: dict[str, StreamPrivacy]
    devices: list[DevicePrivacy]
    caps: dict[str, Level]


class Publication(Answer):
    """When a version became current, and why."""

    version: str
    at: float
    note: str


class Model(Answer):
    """A version of the weights. size: bytes."""

    version: str
    parent: str | None
    teacher: str | None
    round_id: str | None
    sha256: str
    size: int
    created_at: float
    figures: dict[str, Any]
    note: str


class Models(Answer):
    """Every version, and every publication, the newest first."""

    current: str
    models: list[Model]
    history: list[Publication]


class MarginalsVersion(Answer):
    """A version of the global marginals. noise_deviation: of one word's released count, in words."""

    version: int
    parent: int | None
    round_id: str | None
    sha256: str
    words_digest: str
    created_at: float
    noise_deviation: float
    figures: dict[str, Any]
    note: str


class MarginalsList(Answer):
    """Every version, and every publication, the newest first."""

    current: int
    marginals: list[MarginalsVersion]
    history: list[Publication]


class Word(Answer):
    """A word of the public list, and what was released of it."""

    word_id: int
    word: str | None
    probability: float
    background: float
    released_count: float


class MarginalsWords(MarginalsVersion):
    """One version. words: how many the list has; top: those that it lifts most over the background."""

    words: int
    top: list[Word]


class RolloutArm(Answer):
    """seen: devices of it that checked in; watched: for long enough to be counted; failed: of these."""

    seen: int
    watched: int
    failed: int


class Rollout(Answer):
    """A model that some devices got first. base: what the others have; looks: how often it was judged."""

    version: str
    base: str
    state: Literal["running", "promoted", "rolled_back"]
    settings: dict[str, Any]
    started_at: float
    ended_at: float | None
    looks: int
    arms: dict[str, RolloutArm]
    figures: dict[str, Any]
    note: str


class Rollouts(Answer):
    """running: the version of the one that runs; the newest first."""

    running: str | None
    rollouts: list[Rollout]


class Health(Answer):
    """The process runs."""

    status: Literal["ok"]


class Readiness(Answer):
    """Whether requests can be served. checks: by what was looked at, whether it is in order. tick_ages: seconds since
    the last good tick of the ``loop`` that moves rounds, and of every unfinished round by its id."""

    status: Literal["ready", "unready"]
    checks: dict[str, bool]
    model_version: str | None = None
    tick_ages: dict[str, float] = Field(default_factory=dict)


class Me(Answer):
    """Whose token this is."""

    name: str
    role: Role


class DeviceEntry(Answer):
    """An enrolled device. enrolment_token: name of the token that let it in, None for the server's own."""

    device_id: str
    enrolled_at: float
    revoked_at: float | None
    enrolment_token: str | None


class Devices(Answer):
    """By id, from the one after ``after``. count: of all that are enrolled."""

    count: int
    devices: list[DeviceEntry]


class DeviceRevoked(Answer):
    """The device is let in no more."""

    device_id: str
    revoked: Literal[True]


class OperatorEntry(Answer):
    """Who may operate, and since when; times in seconds since the epoch."""

    name: str
    role: Role
    created_at: float
    created_by: str
    revoked_at: float | None


class OperatorMade(OperatorEntry):
    """token: shown this once."""

    token: str


class Operators(Answer):
    """By name."""

    operators: list[OperatorEntry]


class EnrolmentTokenEntry(Answer):
    """uses: how many devices it may let in; used: how many it has."""

    name: str
    created_at: float
    created_by: str
    uses: int | None
    used: int
    expires_at: float | None
    revoked_at: float | None


class EnrolmentTokenMade(EnrolmentTokenEntry):
    """token: shown this once."""

    token: str


class EnrolmentTokens(Answer):
    """The newest first."""

    enrolment_tokens: list[EnrolmentTokenEntry]


class ActionEntry(Answer):
    """subject: the round, version, device or name that it was done to."""

    at: float
    operator: str
    action: str
    subject: str
    note: str


class Actions(Answer):
    """The newest first."""

    actions: list[ActionEntry]
