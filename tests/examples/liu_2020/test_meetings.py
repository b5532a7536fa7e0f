"""Meetings: which are for what."""

import os
from pathlib import Path

import pytest

from examples.liu_2020.meetings import read_meetings, series_of, stages_of
from server.lab.corpora.text import MEETINGS


@pytest.mark.data
@pytest.mark.skipif("IDIOLECT_DATA" not in os.environ, reason="IDIOLECT_DATA names no folder of meetings")
def test_base_models_learn_of_no_meeting_that_the_experiment_tests_on() -> None:
    stages = stages_of(read_meetings(Path(os.environ["IDIOLECT_DATA"]) / "ami" / "meetings.jsonl"))
    base, development = MEETINGS["ami"]["base"], MEETINGS["ami"]["development"]
    assert {series_of(meeting.name) for meeting in stages["learn"]} == set(base)
    assert {series_of(meeting.name) for meeting in stages["development"]} == set(development)
