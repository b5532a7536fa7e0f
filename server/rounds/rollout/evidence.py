"""Whether the devices with the new model fare worse than the control: Fisher's exact test, looked at as they come in.

Who is in which arm is drawn by a hash, so where the models are alike every way to spread the failures over the devices
of both arms is equally likely, whatever their number: the number of failures in the rollout is hypergeometric. Its
upper tail is the p-value, which needs no large numbers.

Looking often would find something in the end. So the doubt is spent: half of it is kept for the last look, when the
rollout's time is over; the k-th look before, k = 0, 1, ..., is taken once, when ``minimum`` 2^k of its devices have
been watched, and may spend doubt / 2^(k + 2). All looks together then take a harmless model back with a probability of
at most ``doubt``. None of it is in the papers."""

from dataclasses import dataclass
from typing import Literal

from server.plans.round import RolloutSettings

Decision = Literal["wait", "promote", "roll_back"]


@dataclass(frozen=True, slots=True)
class Watched:
    """Devices of one arm that have been watched for long enough, and how many of them failed."""

    devices: int
    failed: int


@dataclass(frozen=True, slots=True)
class Evidence:
    rollout: Watched
    control: Watched


@dataclass(frozen=True, slots=True)
class Verdict:
    """looks: how many were taken before the last one, with this. p: the p-value of this look, None where none was
    taken. allowed: what it may spend."""

    decision: Decision
    looks: int
    note: str
    p: float | None = None
    allowed: float | None = None


def upper_tail(found: Evidence) -> float:
    """P(at least so many of the failures fall on the rollout), where any devices of both arms may have failed."""
    from scipy.stats import hypergeom

    both, failed = (getattr(found.rollout, name) + getattr(found.control, name) for name in ("devices", "failed"))
    return float(hypergeom.sf(found.rollout.failed - 1, both, failed, found.rollout.devices))


def judge_evidence(found: Evidence, settings: RolloutSettings, looks: int, seconds: float) -> Verdict:
    """looks: taken so far. seconds: since the rollout began."""
    least = min(found.rollout.devices, found.control.devices)
    if least < settings.minimum:
        return Verdict("wait", looks, f"{least} devices of an arm watched, fewer than {settings.minimum}")
    # Without promotion there is no last look: it would be taken again and again.
    p, over = upper_tail(found), settings.automatic and seconds >= settings.seconds
    reached = looks
    while settings.minimum * 2**reached <= found.rollout.devices:
        reached += 1  # looks that were missed are not made up for: what they could have spent stays unspent
    allowed = settings.doubt / 2 ** (reached + 1) if reached > looks else 0.0
    allowed += settings.doubt / 2 if over else 0.0
    note = f"{found.rollout.failed} of {found.rollout.devices} devices failed with it, "
    note += f"{found.control.failed} of {found.control.devices} without"
    if not allowed:
        return Verdict("wait", looks, note)
    if p <= allowed:
        return Verdict("roll_back", reached, f"{note}: p = {p:.3g}, at most {allowed:.3g}", p, allowed)
    decision: Decision = "promote" if over else "wait"
    return Verdict(decision, reached, f"{note}: p = {p:.3g}, more than {allowed:.3g}", p, allowed)
