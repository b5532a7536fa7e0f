from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.decoding import Endpointing, EndpointRule
from device_sdk.decoding.endpoint import endpoint, trailing_silence
from device_sdk.errors import ConfigurationError

NONE = Endpointing(None, None, None)


@pytest.mark.parametrize(
    ("since_token", "quiet", "expected"),
    [
        (0.9, 0.9, 0.9),
        (0.9, 1.5, 0.9),  # a word that was said softly
        (1.4, 0.1, 0.7),  # a sound without a token counts half: a long word, or one that is not recognized
        (1.4, 0.8, 0.8),
        (5.0, 0.0, 2.5),  # noise that nobody can tell from a speaker
        (0.0, 3.0, 0.0),
    ],
)
def test_silence_is_told_by_level_and_tokens_together(since_token, quiet, expected):
    assert trailing_silence(since_token, quiet) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rules", "has_text", "silence", "seconds", "expected"),
    [
        (Endpointing(), False, 0.0, 0.0, None),
        (Endpointing(), False, 2.37, 2.37, None),
        (Endpointing(), False, 2.4, 2.4, "silence"),  # nothing was said
        (Endpointing(), True, 0.77, 3.0, None),
        (Endpointing(), True, 0.8, 3.0, "after_speech"),
        (Endpointing(), True, 0.47, 30.0, None),  # still speaking: a word is not cut
        (Endpointing(), True, 0.48, 5.9, None),
        (Endpointing(), True, 0.48, 6.0, "length"),
        (Endpointing(), True, 2.0, 20.1, "after_speech"),  # rules are tried in their order
        (NONE, True, 300.0, 300.0, None),
        (NONE, False, 300.0, 300.0, None),
        (Endpointing(silence=EndpointRule(False, 2.4, 5.0)), False, 3.0, 3.0, None),  # all conditions must hold
        (Endpointing(silence=EndpointRule(False, 2.4, 5.0)), False, 5.0, 5.0, "silence"),
        (Endpointing(None, EndpointRule(min_trailing_silence=0.3)), True, 0.3, 0.6, "silence"),  # after text too
        (Endpointing(None, None, EndpointRule(True, 0.0, 0.3)), False, 0.3, 0.3, None),
        (Endpointing(None, None, EndpointRule(True, 0.0, 0.3)), True, 0.0, 0.3, "length"),
    ],
)
def test_the_rules(rules, has_text, silence, seconds, expected):
    assert (endpoint(has_text, silence, seconds, rules) or [None])[0] == expected


@given(has_text=st.booleans(), silence=st.floats(0.0, 60.0), before=st.floats(0.0, 60.0), more=st.floats(0.0, 15.0))
def test_silence_that_goes_on_ends_what_it_ended_before(has_text, silence, before, more):
    if endpoint(has_text, silence, before + silence, Endpointing()) is not None:
        assert endpoint(has_text, silence + more, before + silence + more, Endpointing()) is not None


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
