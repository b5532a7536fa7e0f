"""Whether now is a good time: an app tells how its host is, and a policy says go ahead, or why not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from device_sdk.checks import check_interval
from device_sdk.errors import ConfigurationError

Work = Literal["learn", "check in"]


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the host is just now, as far as the app knows; None is what it does not know. charging: on external power.
    idle: nobody uses it. temperature: of battery or case, Celsius. metered: the network costs. battery: in [0, 1]."""

    charging: bool | None = None
    idle: bool | None = None
    temperature: float | None = None
    metered: bool | None = None
    battery: float | None = None

    def __post_init__(self) -> None:
        if self.battery is not None:
            check_interval("conditions.battery", self.battery, "[0, 1]")
        if self.temperature is not None:
            check_interval("conditions.temperature", self.temperature, "(-inf, inf)")


Policy = Callable[[Work, Conditions], str | None]
"""(work, conditions) -> why not now, for a report; None to go ahead. Asked before the work, and between utterances."""


@dataclass(frozen=True, slots=True)
class CarefulPolicy:
    """Works where its user does not notice. What the app does not know is no reason against. when_charging, when_idle:
    learn only then. lowest_battery: below it, nothing is done unless charging, in [0, 1]. highest_temperature: above it
    nothing is learned, degrees Celsius. on_metered: check in on a metered network too."""

    when_charging: bool = False
    when_idle: bool = True
    lowest_battery: float = 0.3
    highest_temperature: float = 40.0
    on_metered: bool = False

    def __post_init__(self) -> None:
        check_interval("policy.lowest_battery", self.lowest_battery, "[0, 1]")
        if math.isnan(self.highest_temperature):
            raise ConfigurationError(f"policy.highest_temperature: found {self.highest_temperature}, expected a number")

    def __call__(self, work: Work, conditions: Conditions) -> str | None:
        battery, temperature = conditions.battery, conditions.temperature
        if battery is not None and battery < self.lowest_battery and conditions.charging is not True:
            return f"the battery is at {battery:.0%}, below {self.lowest_battery:.0%}, and not charging"
        if work == "check in":
            return "the network is metered" if conditions.metered and not self.on_metered else None
        if temperature is not None and temperature > self.highest_temperature:
            return f"it is {temperature:.0f} degrees warm, above {self.highest_temperature:.0f}"
        if self.when_charging and conditions.charging is False:
            return "it is not charging"
        if self.when_idle and conditions.idle is False:
            return "it is in use"
        return None
