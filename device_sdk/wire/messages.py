"""Messages of the check-in protocol, version 1.

    POST /v1/enrol                              Enrol -> Enrolled
    POST /v1/check-in                   signed  CheckIn -> CheckedIn
    POST /v1/rounds/{round}/marginals   signed  MarginalReport -> Receipt
    POST /v1/rounds/{round}/deltas      signed  safetensors bytes, DeltaHeader in its metadata -> Receipt
    POST /v1/rounds/{round}/words       signed  WordReport -> Receipt
    GET  /v1/models/{version}                   safetensors bytes (weights only), sha256 in the ETag; teachers too
    GET  /v1/models/{version}/from/{version}    the difference of two models, where the server has one
    GET  /v1/marginals/{version}                Marginals

Errors are answered as Problem with a 4xx or 5xx status. A report id seen before with the same body is answered with
``duplicate`` true and counted once; with another body it is refused (409)."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from device_sdk.wire.words import is_word

FIXED_POINT = 1 << 8
"""Marginal counts travel as integers in units of 1 / FIXED_POINT."""

Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
DeltaKind = Literal["difference", "gradient"]
Clipping = Literal["global", "uniform", "dim"]
Encoding = Literal["float32", "float16", "int8"]
NoiseMechanism = Literal["discrete_laplace", "discrete_gaussian"]
Trust = Literal["central", "distributed", "local"]
Measure = Literal["none", "loss", "word_error"]
Part = Literal["whole", "acoustic", "output", "adapters", "norms"]


class Message(BaseModel):
    """What all messages share: a version; fields that are not known are refused, and so are infinities and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    version: Literal[1] = 1


class Enrol(Message):
    """A device introduces itself. public_key: Ed25519, raw, base64."""

    token: str
    public_key: str


class Enrolled(Message):
    """The id that the server gave the device."""

    device_id: Identifier


class CheckIn(Message):
    """What the device has now."""

    device_id: Identifier
    bundle_format: int
    model_version: str
    marginals_version: int
    words_digest: str


class MarginalPlan(Message):
    """What a device sends of its counts, how that is bounded, and where which noise is added.

    mode: ``bounded`` sends the utterances since the last report, at most ``max_words`` distinct words, each with a
    count of at most ``max_weight``. ``paper`` sends every count so far without a bound, for noise of scale 1 / epsilon
    words (Liu & Peng 2020, eq. 8 and 9): epsilon is then of one count in one release, and no epsilon holds for an
    utterance or a user. mechanism: of the noise; ``discrete_gaussian`` holds for (epsilon, delta), ``discrete_laplace``
    needs no delta. trust: who adds it. ``central``: the server, which sees every count. ``local``: the device, all of
    it. ``distributed``: every device a share, such that ``minimum_survivors`` shares are all of it; only where the
    counts are summed by secure aggregation, since a share alone hides nothing."""

    max_words: Annotated[int, Field(ge=1, le=1000)] = 20
    max_weight: Annotated[float, Field(gt=0)] = 1.0
    epsilon: Annotated[float, Field(gt=0)] = 1.0
    trust: Trust = "central"
    mode: Literal["bounded", "paper"] = "bounded"
    mechanism: NoiseMechanism = "discrete_laplace"
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    minimum_survivors: Annotated[int, Field(ge=1, le=1_000_000)] = 1

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.mode == "paper" and (self.trust, self.mechanism) != ("central", "discrete_laplace"):
            found = f"{self.trust}, {self.mechanism}"
            raise ValueError(f"trust, mechanism: found {found}; mode 'paper' has central discrete_laplace")
        if self.trust == "distributed" and self.mechanism != "discrete_gaussian":
            whose = "discrete_gaussian, whose shares add up to one draw"
            raise ValueError(f"mechanism: found {self.mechanism}; expected {whose}")
        if self.trust != "distributed" and self.minimum_survivors != 1:
            raise ValueError(f"minimum_survivors: found {self.minimum_survivors}; only trust 'distributed' has shares")
        return self


class DeltaPlan(Message):
    """What a device sends of its learning, how it is bounded, noised and written; in this order.

    part: which parameters a delta has, see :data:`device_sdk.bundle.architecture.SUBSETS` (matrices whole); whatever
    else a device learned stays with it, and the published model keeps it as it was.
    kind: ``difference`` is the local weights minus those that the local steps began from; ``gradient`` is the mean
    gradient at the published weights, without local steps, of at most ``batch_size`` utterances, each of which is in
    one gradient only (FedSGD in a single pass: Rao et al. 2023, section 3). clip_norm: L2 bound C of the whole.
    clipping: ``global`` scales all of it; ``uniform`` and ``dim`` scale every one of the K parameter arrays on its own,
    to C / sqrt(K), or to C sqrt(D_i / sum D) by its size D_i (Pelikan et al. 2023, definition 3). Nothing is ever
    scaled up. noise_stddev: standard deviation of the Gaussian noise this device adds to every value (its share of the
    cohort's noise), 0 for none (then epsilon is infinite). encoding: of the values on the wire; one scale for each
    ``scale_per``. measure: what the device tells of its learning besides, for rounds that weigh devices by it (Gao et
    al. 2022, eq. 9 and 10): the mean training loss, or the word error where its user gave the words. It is not noised.

    trust: who sees a delta. ``central``: the server. ``distributed``: nobody; it is rounded to ``bits`` bits a value,
    2^(bits - 1) - 1 steps to the clip norm, and summed by secure aggregation over groups of which at least
    ``minimum_survivors`` are left (:mod:`device_sdk.privacy.quantised`); encoding and measure have no place there."""

    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    noise_stddev: Annotated[float, Field(ge=0)] = 0.0
    minimum_utterances: Annotated[int, Field(ge=1)] = 1
    kind: DeltaKind = "difference"
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    clipping: Clipping = "global"
    encoding: Encoding = "float32"
    scale_per: Literal["tensor", "row"] = "row"
    measure: Measure = "none"
    part: Part = "whole"
    trust: Literal["central", "distributed"] = "central"
    minimum_survivors: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    bits: Annotated[int, Field(ge=10, le=20)] = 14

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.trust == "distributed":
            if (self.encoding, self.measure) != ("float32", "none"):
                both = f"{self.encoding}, {self.measure}"
                raise ValueError(f"encoding, measure: found {both}; with trust 'distributed' expected neither")
            if self.minimum_survivors < 2:
                raise ValueError("minimum_survivors: found 1, whose sum is a device's own; expected at least 2")
        elif self.minimum_survivors != 1:
            raise ValueError(f"minimum_survivors: found {self.minimum_survivors}; only trust 'distributed' has sums")
        if self.kind == "gradient" and self.minimum_utterances > self.batch_size:
            found, most = self.minimum_utterances, self.batch_size
            raise ValueError(f"minimum_utterances: found {found}, expected at most batch_size = {most}")
        return self


class WordPlan(Message):
    """What a device names of the words outside the public list that its user gave, and what their release costs.

    max_words: k, distinct words a device names, each of which counts once. epsilon, delta: of one release, for all that
    one device names; the server sees the words, noises how many devices named each, and releases those that pass a
    threshold."""

    max_words: Annotated[int, Field(ge=1, le=1000)] = 5
    epsilon: Annotated[float, Field(ge=1e-6)] = 1.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-8


class RoundOffer(Message):
    """The open round, as one device is asked to take part in it. A stream without a plan is not collected."""

    round_id: Identifier
    model_version: str
    marginals: MarginalPlan | None = None
    deltas: DeltaPlan | None = None
    closes_in_seconds: float
    words: WordPlan | None = None


class CheckedIn(Message):
    """The server's answer: what is current, the open round if any, and when to come back.

    teacher_version, teacher_sha256: the model that the current one learned from, an average of it and its predecessors,
    where the server keeps one (Rao et al. 2023, section 2.2); fetched like any model. marginals_sha256: of their
    probabilities' bytes. A device that has another content of a current version takes the current one."""

    model_version: str
    model_sha256: str
    marginals_version: int
    marginals_sha256: str
    round: RoundOffer | None = None
    retry_after_seconds: float
    teacher_version: str | None = None
    teacher_sha256: str | None = None

    @model_validator(mode="after")
    def _whole_teacher(self) -> Self:
        if (self.teacher_version is None) != (self.teacher_sha256 is None):
            raise ValueError("teacher_version, teacher_sha256: found one of them, expected both or neither")
        return self


class MarginalReport(Message):
    """Bounded counts of new utterances. counts: word id -> weight in units of 1 / FIXED_POINT."""

    report_id: Identifier
    device_id: Identifier
    round_id: Identifier
    words_digest: str
    utterances: Annotated[int, Field(ge=0)]
    counts: dict[int, int]


def _word(word: str) -> str:
    if not is_word(word):
        raise ValueError("expected a word: a letter first, no spaces, 63 characters at most")  # and never which
    return word


_Word = Annotated[str, Field(min_length=1, max_length=63), AfterValidator(_word)]


def _distinct(words: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(words)) < len(words):
        raise ValueError("expected every word once")
    return words


class WordReport(Message):
    """Words outside the public list, each once. words_digest: of the list that they are not on."""

    report_id: Identifier
    device_id: Identifier
    round_id: Identifier
    words_digest: str
    words: Annotated[tuple[_Word, ...], Field(min_length=1, max_length=1000), AfterValidator(_distinct)]


class DeltaHeader(Message):
    """Travels as the ``header`` entry of the safetensors metadata. kind, encoding, scale_per: as the plan had it.

    loss: mean training loss over the utterances, nats; word_error: word errors over reference words of those whose
    words the user gave. Only what the plan's ``measure`` asks for."""

    report_id: Identifier
    device_id: Identifier
    round_id: Identifier
    model_version: str
    utterances: Annotated[int, Field(ge=1)]
    kind: DeltaKind = "difference"
    encoding: Encoding = "float32"
    scale_per: Literal["tensor", "row"] = "row"
    loss: Annotated[float | None, Field(ge=0, le=1e6)] = None
    word_error: Annotated[float | None, Field(ge=0, le=1e3)] = None


class Receipt(Message):
    """A report was taken. duplicate: it had been before, and counts once."""

    report_id: Identifier
    duplicate: bool = False


class Marginals(Message):
    """The global distribution over the public word list. probabilities: float64 little-endian, base64."""

    marginals_version: int
    words_digest: str
    probabilities: str


class Problem(Message):
    """What went wrong: code is stable for programs, detail is for people, field names the culprit."""

    code: str
    detail: str
    field: str | None = None
