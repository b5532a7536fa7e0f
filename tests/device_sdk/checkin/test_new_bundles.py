"""An app ships another bundle, of other sizes, pieces and words: what the user taught stays, as far as it can."""

import logging
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, BundleError, Corrected, Device
from device_sdk.bundle.architecture import Architecture
from device_sdk.checkin import identity
from export.bundles import write_bundle
from rescoring.words import UNKNOWN, WordList
from tests.device_sdk.checkin.site import fails, opened, site, taught
from tests.server.parties import ENROLMENT
from tests.tiny import tiny_parts


@pytest.fixture
def successor(tmp_path: Path, tiny_bundle: Bundle) -> Bundle:
    """Wider, with a word more and a word less."""
    words = WordList((UNKNOWN, "zugzwang", *(word for word in tiny_bundle.words.words[1:] if word != "light")))
    parts = tiny_parts(5, Architecture(2, 48, 1, 32, 32, 32, 72)) | {"words": words, "version": "2"}
    parts["background"] = np.full(len(words), 1 / len(words))
    return Bundle.open(write_bundle(tmp_path / "successor", **parts))


def counts(device: Device) -> dict[str, float]:
    cache, words = device._model_state.cache, device.base.words
    listed = {words[number]: float(weight) for number, weight in enumerate(cache.counts) if number and weight}
    return listed | dict(cache.unlisted)


@pytest.mark.parametrize("finishes", [True, False], ids=["the round goes on", "the round is over"])
def test_a_device_moves_over(
    finishes: bool, tmp_path: Path, tiny_bundle: Bundle, successor: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    """Counts by word, consent and identity stay, weights are dropped and that is said; what was on its way to a round
    arrives or is refused, and a model of other sizes is refused by name."""
    with site(tmp_path / "old", tiny_bundle) as old, site(tmp_path / "new", successor) as new:
        round_id = old.open(marginals={}, deltas={"clip_norm": 10.0})
        with opened(tmp_path / "device", tiny_bundle) as device:
            taught(device, 1)
            taught(device, 2, Corrected("zugzwang in the kitchen"))
            fails(device, old.url)
            before, consent = counts(device), device.consent
            known = identity.load(device._store, old.url)
        if not finishes:
            old.operator.post(f"rounds/{round_id}/abandon")
        with caplog.at_level(logging.WARNING), opened(tmp_path / "device", successor) as device:
            assert "weights learned on another are dropped; counts stay" in caplog.text
            assert counts(device) == before and before["zugzwang"] == before["light"] == 1.0
            assert device.consent == consent and device.student.utterances == 0
            with pytest.raises(BundleError, match=r"'encoder.0.W' has shape \[128, 192\], expected \[192, 192\]"):
                device.check_in(old.url)
            assert identity.load(device._store, old.url) == known and device._store.names("outbox") == []
            if finishes:
                assert old.close(round_id)["releases"]["marginals"]["reports"] == 1
            report = device.check_in(new.url, ENROLMENT)
            assert (report.model_version, report.sent, report.updates_refused) == ("2", (), ())
            taught(device, 3)
            new.open(marginals={})
            assert [each.refused for each in device.check_in(new.url).sent] == [None]
