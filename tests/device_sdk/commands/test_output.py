"""What commands print as JSON."""

import json
import math
from types import MappingProxyType

import pytest

from device_sdk.commands.output import deliver, finite


def test_json_tells_numbers_that_it_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    said = {"loss": math.nan, "epsilons": (1.5, math.inf, [-math.inf]), "spent": {"words": math.inf}, "count": 3}
    assert deliver(said, True, None)
    told = {"loss": None, "epsilons": [1.5, "Infinity", ["Infinity"]], "spent": {"words": "Infinity"}, "count": 3}
    assert json.loads(capsys.readouterr().out) == told == finite(MappingProxyType(said))
