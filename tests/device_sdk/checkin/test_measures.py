"""What a device tells of its learning, against a server process."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from device_sdk import Accepted, Bundle
from device_sdk.feedback.distance import edit_distance
from device_sdk.learning.delta import Measures
from tests.device_sdk.checkin.site import LIGHT, opened, site, taught
from tests.server.parties import ENROLMENT


@pytest.mark.parametrize("weighting", ["loss", "word_errors"])
def test_a_device_tells_how_well_it_learned(tmp_path: Path, tiny_bundle: Bundle, weighting: str) -> None:
    with site(tmp_path / "server", tiny_bundle) as server, opened(tmp_path / "device", tiny_bundle) as device:
        operator, url = server.operator, server.url
        round_id = operator.open(marginals=None, deltas={"clip_norm": 100.0}, weighting=weighting)
        served = taught(device, 1, Accepted() if weighting == "word_errors" else LIGHT)
        if weighting == "word_errors":
            report = device.check_in(url, ENROLMENT)
            assert report.sent == () and "words the user gave" in report.left_out[0]
            served = taught(device, 2)
        losses = device.student.measures
        assert (losses.utterances, losses.words) == ((2, 4) if weighting == "word_errors" else (1, 4))
        assert device.check_in(url, ENROLMENT).sent[0].refused is None
        with closing(sqlite3.connect(tmp_path / "server/server.db")) as database:
            row = database.execute("SELECT loss, word_error FROM reports").fetchone()
        if weighting == "loss":
            assert row == (pytest.approx(losses.loss), None) and losses.loss > 1.0
        else:
            errors = edit_distance(["turn", "on", "the", "light"], served.nbest[0].text.split())
            assert row == (None, pytest.approx(errors / 4))
        assert operator.close(round_id)["state"] == "published" and device.check_in(url).new_model
        assert device.student.measures.utterances == 0, "counted anew on a new model"


def test_measures_are_kept_over_a_restart_and_forgotten_with_the_rest(tmp_path: Path, tiny_bundle: Bundle) -> None:
    with opened(tmp_path / "device", tiny_bundle) as device:
        taught(device, 1)
        before = device.student.measures
    with opened(tmp_path / "device", tiny_bundle) as device:
        assert device.student.measures == before
        taught(device, 2)
        assert device.student.measures.utterances == 2
        device.forget()
        assert device.student.measures.utterances == 0


def test_reinforce_has_no_loss_to_tell() -> None:
    assert Measures(loss=-3.0, utterances=2).mean_loss is None
    assert Measures().mean_loss is None and Measures().word_error is None
    assert Measures(loss=3.0, utterances=2).mean_loss == 1.5
