from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.decoding import Endpointing, EndpointRule
from device_sdk.decoding.endpoint import endpoint
from device_sdk.errors import ConfigurationError

FRAME = 0.03
NONE = Endpointing(None, None, None)


@pytest.mark.parametrize(
    ("frames", "last", "expected"),
    [
        (0, None, None),
        (39, None, None),
        (79, None, None),
        (80, None, "silence"),  # 2.4 s in which nothing was said
        (41, 1, None),  # 39 frames of blank after the last token
        (42, 1, "after_speech"),
        (40, 39, None),
        (666, 665, None),
        (667, 666, "length"),  # still speaking
        (667, 600, "after_speech"),  # rules are tried in their order
    ],
)
def test_the_rules(frames, last, expected):
    assert endpoint(frames, last, FRAME, frames * FRAME, Endpointing()) == expected


@pytest.mark.parametrize(
    ("rules", "frames", "last", "expected"),
    [
        (NONE, 10_000, 5, None),
        (NONE, 10_000, None, None),
        (Endpointing(silence=None), 500, None, None),
        (Endpointing(silence=EndpointRule(False, 2.4, 5.0)), 100, None, None),  # all conditions must hold
        (Endpointing(silence=EndpointRule(False, 2.4, 5.0)), 167, None, "silence"),
        (Endpointing(None, EndpointRule(min_trailing_silence=0.3)), 20, 9, "silence"),  # of any kind, after text too
        (Endpointing(None, None, EndpointRule(True, 0.0, 0.3)), 10, None, None),
        (Endpointing(None, None, EndpointRule(True, 0.0, 0.3)), 10, 9, "length"),
    ],
)
def test_other_rules(rules, frames, last, expected):
    assert endpoint(frames, last, FRAME, frames * FRAME, rules) == expected


def test_length_counts_audio_and_silence_counts_frames():
    assert endpoint(660, 655, FRAME, 20.0, Endpointing()) == "length"
    assert endpoint(40, 0, FRAME, 1.5, Endpointing()) is None
    assert endpoint(41, 0, FRAME, 1.5, Endpointing()) == "after_speech"


@given(
    frames=st.integers(1, 2_000),
    last=st.none() | st.integers(0, 1_999),
    more=st.integers(0, 500),
)
def test_silence_that_goes_on_ends_what_it_ended_before(frames, last, more):
    last = None if last is None else min(last, frames - 1)
    if endpoint(frames, last, FRAME, frames * FRAME, Endpointing()) is not None:
        assert endpoint(frames + more, last, FRAME, (frames + more) * FRAME, Endpointing()) is not None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EndpointRule(), "found a rule without a silence or a length"),
        (lambda: EndpointRule(True), "set it to None"),
        (lambda: EndpointRule(1, 1.0), r"endpointing\.must_contain_text: found 1, expected True or False"),
        (lambda: EndpointRule(True, -1.0), r"endpointing\.min_trailing_silence: found -1\.0"),
        (lambda: EndpointRule(True, float("nan")), r"min_trailing_silence: found nan"),
        (lambda: EndpointRule(True, "1"), r"min_trailing_silence: found '1'"),
        (lambda: EndpointRule(True, True), r"min_trailing_silence: found True"),
        (lambda: EndpointRule(False, 0.0, float("inf")), r"endpointing\.min_utterance_length: found inf"),
        (lambda: Endpointing(after_speech=1.2), r"endpointing\.after_speech: found 1\.2, expected an EndpointRule"),
    ],
)
def test_settings_outside_their_domain_are_named(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
