from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.audio import Resampler
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.errors import AudioError
from device_sdk.features import logmel
from device_sdk.hypothesis import Result
from tests.signals import chirp, noise


@pytest.fixture(scope="module")
def recognizer(tiny_bundle):
    return Recognizer(tiny_bundle)


def without_id(result: Result) -> Result:
    return replace(result, utterance_id="")


def run(recognizer, waveform, cuts=(), sample_rate=16_000):
    session = recognizer.session(sample_rate)
    bounds = [0, *sorted(min(cut, len(waveform)) for cut in cuts), len(waveform)]
    partials = [session.feed(waveform[a:b]) for a, b in itertools.pairwise(bounds)]
    return session, partials, session.finish()


@settings(max_examples=20, deadline=None)
@given(
    length=st.integers(0, 20_000),
    cuts=st.lists(st.integers(0, 20_000), max_size=8),
    rate=st.sampled_from([16_000, 8_000]),
)
def test_any_chunking_gives_the_same_result(recognizer, length, cuts, rate):
    waveform = chirp(length)
    session, _, whole = run(recognizer, waveform, (), rate)
    other, _, parts = run(recognizer, waveform, cuts, rate)
    assert without_id(whole) == without_id(parts)
    np.testing.assert_array_equal(session.features, other.features)


def test_one_sample_at_a_time():
    # On the features alone: the point is that no stage needs more than one sample.
    waveform = chirp(2_000)
    resampler = Resampler(16_000)
    np.testing.assert_array_equal(np.concatenate([resampler.feed(waveform[i : i + 1]) for i in range(2_000)]), waveform)


def test_single_samples_through_a_session(recognizer):
    waveform = chirp(1_700)
    assert without_id(run(recognizer, waveform, range(1_700))[2]) == without_id(recognizer.recognise(waveform))


@pytest.mark.parametrize("seed", range(4))
def test_the_nbest_list(recognizer, seed):
    waveform = chirp(32_000, seed)
    result = recognizer.recognise(waveform)
    texts = [hypothesis.text for hypothesis in result.nbest]
    assert len(texts) == len(set(texts)) == 8
    assert result.text == texts[0]
    assert result.seconds == 2.0
    scores = [hypothesis.score for hypothesis in result.nbest]
    assert scores == sorted(scores, reverse=True)
    for hypothesis in result.nbest:
        assert hypothesis.score == hypothesis.scores.acoustic < 0.0
        assert recognizer.tokenizer.decode(hypothesis.tokens) == hypothesis.text
        assert " ".join(word.text for word in hypothesis.words) == hypothesis.text
        times = [time for word in hypothesis.words for time in (word.start, word.end)]
        assert all(0.0 <= time <= 2.0 for time in times)
        assert times[::2] == sorted(times[::2])
        assert all(word.start < word.end for word in hypothesis.words)


def test_partials_grow_with_the_blocks(recognizer):
    _, partials, result = run(recognizer, chirp(32_000), range(1_600, 32_000, 1_600))
    assert [partial.seconds for partial in partials] == pytest.approx([0.1 * i for i in range(1, 21)])
    assert all(partial.text.startswith(partial.stable) for partial in partials)
    assert partials[0].text == ""
    assert partials[-1].text
    assert result.text.startswith(partials[-1].stable)


@pytest.mark.parametrize("length", [0, 1, 2, 79, 80, 159, 399, 400, 479, 480, 481, 4_799, 4_800, 4_801])
@pytest.mark.parametrize("beam", [1, 4])
def test_short_audio_gives_a_result(tiny_bundle, length, beam):
    recognizer = Recognizer(tiny_bundle, DecodingSettings(beam=beam, nbest=beam))
    session = recognizer.session()
    session.feed(chirp(length))
    result = session.finish()
    assert result.nbest
    if length < 400:
        assert [hypothesis.text for hypothesis in result.nbest] == [""]
    assert result.seconds == length / 16_000
    np.testing.assert_allclose(session.features, logmel(chirp(length)), atol=1e-4)


def test_texts_that_several_token_sequences_spell_do_not_shorten_the_list(tiny_bundle, monkeypatch):
    waveform = noise(32_000)
    expected = Recognizer(tiny_bundle, DecodingSettings(beam=16, nbest=16)).recognise(waveform)
    decode = tiny_bundle.tokenizer.decode

    def forgetful(self, tokens):
        return decode(tokens)[:8]

    monkeypatch.setattr(type(tiny_bundle.tokenizer), "decode", forgetful)
    result = Recognizer(tiny_bundle, DecodingSettings(beam=4, nbest=4)).recognise(waveform)
    assert len({hypothesis.text[:8] for hypothesis in expected.nbest}) >= 4
    assert len({hypothesis.text for hypothesis in result.nbest}) == len(result.nbest) == 4
    monkeypatch.setattr(type(tiny_bundle.tokenizer), "decode", lambda self, tokens: "one")
    result = Recognizer(tiny_bundle, DecodingSettings(beam=2, nbest=2)).recognise(waveform)
    assert [hypothesis.text for hypothesis in result.nbest] == ["one"]
    assert result.nbest[0].score < 0.0


def test_silence_gives_a_result(recognizer):
    assert recognizer.recognise(np.zeros(16_000, np.float32)).nbest


def test_int16_and_float32_are_the_same_audio(recognizer):
    integers = (chirp(16_000) * 32_767).astype(np.int16)
    floats = integers.astype(np.float32) / 32_768
    assert without_id(recognizer.recognise(integers)) == without_id(recognizer.recognise(floats))


def test_other_rates_are_resampled(recognizer):
    result = recognizer.recognise(chirp(88_200), 44_100)
    assert result.seconds == 2.0
    session = recognizer.session(48_000)
    session.feed(chirp(48_000))
    session.finish()
    assert session.features.shape == (100, 64)
    with pytest.raises(AudioError, match="found sample rate 1000 Hz"):
        recognizer.session(1_000)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.array([0.0, np.nan], np.float32), "found nan at sample 1"),
        (np.zeros((2, 100), np.float32), r"found shape \(2, 100\), expected one channel"),
        (np.zeros(100), "found dtype float64"),
        ([0.0, 0.0], "found list"),
    ],
)
def test_bad_samples_leave_the_utterance_as_it_was(recognizer, samples, message):
    waveform = chirp(16_000)
    session = recognizer.session()
    session.feed(waveform[:9_000])
    with pytest.raises(AudioError, match=message):
        session.feed(samples)
    session.feed(waveform[9_000:])
    assert without_id(session.finish()) == without_id(recognizer.recognise(waveform))


def test_an_utterance_has_an_end(tiny_bundle):
    recognizer = Recognizer(tiny_bundle, DecodingSettings(max_seconds=1.0))
    session = recognizer.session()
    session.feed(chirp(16_000))
    with pytest.raises(AudioError, match=r"found an utterance of 1\.10 s, expected at most 1 s"):
        session.feed(chirp(1_600))
    assert without_id(session.finish()) == without_id(recognizer.recognise(chirp(16_000)))


def test_reset_begins_another_utterance(recognizer):
    session = recognizer.session()
    session.feed(chirp(16_000, 1))
    first = session.finish()
    for call in (lambda: session.feed(chirp(1)), session.finish):
        with pytest.raises(AudioError, match=r"call reset\(\)"):
            call()
    session.reset()
    assert session.seconds == 0.0
    assert session.features.shape == (0, 64)
    session.feed(chirp(20_000, 2))
    session.reset()
    session.feed(chirp(16_000, 1))
    again = session.finish()
    assert again.utterance_id != first.utterance_id
    assert (first.offset, again.offset) == (0.0, 2.25)  # the session's clock runs on
    assert replace(again, utterance_id="", offset=0.0) == without_id(first)


def test_a_second_pass_orders_the_list(tiny_bundle):
    seen = []

    def backwards(hypotheses):
        seen.extend(hypotheses)
        return tuple(replace(h, score=-float(i)) for i, h in enumerate(reversed(hypotheses)))

    first = Recognizer(tiny_bundle, DecodingSettings(nbest=3)).recognise(chirp(16_000))
    second = Recognizer(tiny_bundle, DecodingSettings(nbest=3), backwards).recognise(chirp(16_000))
    assert len(first.nbest) == len(second.nbest) == 3
    assert len(seen) == 8  # all that the beam kept, not only those that were asked for
    assert second.text == seen[-1].text


def test_threads_share_a_recogniser(recognizer):
    waveforms = [chirp(16_000, seed) for seed in range(6)]
    expected = [without_id(recognizer.recognise(waveform)) for waveform in waveforms]
    found: dict[int, Result] = {}

    def work(index: int) -> None:
        found[index] = without_id(run(recognizer, waveforms[index], range(0, 16_000, 1_000))[2])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(6)] == expected
