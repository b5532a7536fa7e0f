"""What a device may do and how, validated once; and what its app brings besides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypedDict

from device_sdk.checks import NUMBER, WHOLE, check_choice, check_intervals, check_type
from device_sdk.decoding import DecodingSettings
from device_sdk.errors import ConfigurationError
from device_sdk.feedback.repetition import RepetitionSettings
from device_sdk.feedback.signals import CostFunction
from device_sdk.learning.guard import GuardSettings
from device_sdk.learning.rehearsal import Transcribed
from device_sdk.learning.settings import LearningSettings
from device_sdk.policy import Conditions, Policy
from device_sdk.privacy.bounds import OfferBounds
from device_sdk.runtimes.engine import RUNTIMES, Engine, Runtime
from device_sdk.runtimes.onnxruntime import PRECISION_CHOICES, Precision

_PARTS = (DecodingSettings, GuardSettings, LearningSettings, OfferBounds, RepetitionSettings)
_KINDS: Mapping[str, tuple[type, str]] = {
    "bool": (bool, "True or False"),
    "int": (WHOLE, "a whole number"),
    "float": (NUMBER, "a number"),
    **{part.__name__: (part, part.__name__) for part in _PARTS},
}
"""By a field's annotation: its type, and what messages call it."""


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What an app lets a device do, as far as its user agrees too (:class:`~device_sdk.consent.Consent`), and how.

    use_marginals: adapt recognition to the user's own words and the published ones. learn: keep features in memory and
    take local steps. keep_corrected: what the user confirmed may wait for learning on the disk too, encrypted, for a
    day at most: text, n-best list and features of 200 utterances and 16 MB at most, never audio; the user agrees to it
    as "keeping". keep_heard: so may everything that was heard, for ``memory_seconds``, where the feedback comes from
    another process than heard it. share_marginals, share_deltas, share_words: what check-ins may send. max_new_words:
    words outside the public list that a round may have, whatever it asks for. bounds: what a server's offers may ask at
    most, and all of them together; what goes beyond is left out. plain_http: servers on other machines may be spoken to
    without TLS, where anybody on the way reads along: for closed networks. guard: how learning that does harm is found
    out and taken back. repetition: when an utterance says the one before it again. memory_utterances, memory_seconds:
    bound of what is kept in memory for late feedback and learning. check_in_seconds: how long a check-in may take in
    all, however slow the server is; a download that is not done by then is gone on with by the next one. threads: of
    each onnxruntime session. precision: of the recognizer's products, float32, the quicker int8, or auto; what is
    learned is always float32. runtime: runs the networks; ``executorch`` needs the extra of that name and programs, the
    folder that ``idiolect export executorch BUNDLE DIR --training`` wrote (None: the folder ``executorch`` in the
    bundle's)."""

    use_marginals: bool = True
    learn: bool = True
    keep_corrected: bool = False
    keep_heard: bool = False
    share_marginals: bool = True
    share_deltas: bool = True
    share_words: bool = True
    max_new_words: int = 5
    bounds: OfferBounds = field(default_factory=OfferBounds)
    plain_http: bool = False
    decoding: DecodingSettings = field(default_factory=DecodingSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    guard: GuardSettings = field(default_factory=GuardSettings)
    repetition: RepetitionSettings = field(default_factory=RepetitionSettings)
    memory_utterances: int = 64
    memory_seconds: float = 3600.0
    check_in_seconds: float = 600.0
    threads: int = 1
    precision: Precision = "float32"
    runtime: Runtime = "onnxruntime"
    programs: Path | None = None

    def engine(self) -> Engine:
        """What opens the networks for these settings."""
        return Engine(self.runtime, self.programs, self.threads, self.precision)

    def __post_init__(self) -> None:
        for each in fields(self):
            if (kind := _KINDS.get(str(each.type))) is not None:
                check_type(f"device.{each.name}", getattr(self, each.name), *kind)
        check_intervals("device", self, "[1, inf)", "memory_utterances", "threads", "max_new_words")
        check_intervals("device", self, "(0, inf)", "memory_seconds")
        check_intervals("device", self, "(0, 86400]", "check_in_seconds")
        if self.keep_heard and not self.keep_corrected:
            raise ConfigurationError("device.keep_heard: found True without keep_corrected, expected both")
        check_choice("device.precision", self.precision, PRECISION_CHOICES)
        check_choice("device.runtime", self.runtime, RUNTIMES)
        if self.runtime == "executorch" and self.precision == "int8":
            raise ConfigurationError("device.precision: found int8, which only runtime 'onnxruntime' has; use float32")


class Host(TypedDict, total=False):
    """Keyword arguments of :meth:`Device.open <device_sdk.device.Device.open>` and
    :class:`~device_sdk.profiles.Profiles`, each with a default.

    cost_function: the app's own costs of hypotheses. conditions: tells how the host is just now; policy: whether that
    is a good time to learn or to check in, asked before and between. rehearsal: transcribed utterances that learning
    goes over between the user's own. trusted_root: bytes of a TUF ``root.json``; what check-ins fetch is then taken
    only where the keys that it names have signed it (extra ``secure-updates``)."""

    cost_function: CostFunction | None
    policy: Policy
    conditions: Callable[[], Conditions]
    rehearsal: Sequence[Transcribed]
    trusted_root: bytes | None


def check_host(host: Host) -> None:
    """ConfigurationError: something is of another type. TypeError: no such argument. A root is checked in use."""
    if unknown := sorted(host.keys() - Host.__optional_keys__):
        raise TypeError(f"device: found argument {unknown[0]!r}, expected {sorted(Host.__optional_keys__)}")
    for name in ("cost_function", "policy", "conditions"):
        value = host.get(name)
        if not (callable(value) or name not in host or (value is None and name == "cost_function")):
            raise ConfigurationError(f"{name}: found {type(value).__name__}, expected a function")
    rehearsal: object = host.get("rehearsal", ())
    if not isinstance(rehearsal, Sequence) or isinstance(rehearsal, str | bytes):
        raise ConfigurationError(f"rehearsal: found {type(rehearsal).__name__}, expected a sequence of Transcribed")
    for index, each in enumerate(rehearsal):
        check_type(f"rehearsal[{index}]", each, Transcribed, "Transcribed")
