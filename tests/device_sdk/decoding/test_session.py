import itertools
import time
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.decoding import session as session_module
from device_sdk.decoding.beam import paths
from device_sdk.decoding.stream import search_again
from device_sdk.errors import AudioError
from device_sdk.features import logmel
from device_sdk.hypothesis import Result
from device_sdk.personalization.rescorer import Rescorer
from rescoring.combination import Calibration, Curve
from tests.signals import chirp, noise
from tests.speech import clips, packaged


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
    cuts=st.just(range(1_500)) | st.lists(st.integers(0, 20_000), max_size=8),
    rate=st.sampled_from([16_000, 8_000, 11_025, 44_100, 48_000]),
)
def test_any_chunking_gives_the_same_result(recognizer, length, cuts, rate):
    waveform = chirp(length)
    session, partials, whole = run(recognizer, waveform, (), rate)
    np.testing.assert_allclose(session.features, logmel(soxr.resample(waveform, rate, 16_000)), atol=1e-3)
    other, others, parts = run(recognizer, waveform, cuts, rate)
    assert without_id(whole) == without_id(parts) and partials[-1] == others[-1]
    np.testing.assert_array_equal(session.features, other.features)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_what_is_stable_is_never_taken_back(data):
    """On real speech, and on speech that is noisy or stops in the middle of a word."""
    speech, spoken = default_recognizer(), clips()
    parts = data.draw(st.lists(st.integers(0, len(spoken) - 1), min_size=1, max_size=3))
    loudness = data.draw(st.sampled_from([0.0, 1e-3, 1e-2, 0.1]))
    end = data.draw(st.integers(8_000, 80_000))
    waveform = np.concatenate([spoken[part] for part in parts])[:end]
    waveform = waveform + np.float32(loudness / 0.1) * noise(len(waveform), end)
    cuts = data.draw(st.lists(st.integers(0, end), max_size=30))
    _, partials, _ = run(speech, waveform, [*cuts, *range(0, end, 4_800)])
    kept = ""
    for partial in partials:
        assert partial.stable.startswith(kept) and partial.text.startswith(partial.stable)
        kept = partial.stable


def test_nor_where_the_search_takes_it_back(monkeypatch):
    """As if every best hypothesis were stable at once, so that the search does find better ones elsewhere."""
    monkeypatch.setattr(session_module, "shared_prefix", lambda prefixes, alignments, threshold: prefixes[0])
    contradicted = 0
    for clip in clips():
        _, partials, result = run(default_recognizer(), clip, range(0, len(clip), 1_600))
        for earlier, later in itertools.combinations(partials, 2):
            assert later.text.startswith(earlier.stable)
        contradicted += not result.text.startswith(partials[-1].stable)  # the result tells what was found in the end
    assert contradicted


@lru_cache
def default_recognizer():
    return Recognizer(packaged())


@pytest.mark.parametrize("seed", range(4))
def test_the_nbest_list(recognizer, seed):
    waveform = chirp(32_000, seed)
    result = recognizer.recognize(waveform, 16_000)
    texts = [hypothesis.text for hypothesis in result.nbest]
    assert len(texts) == len(set(texts)) == 8 and (result.text, result.seconds) == (texts[0], 2.0)
    scores = [hypothesis.score for hypothesis in result.nbest]
    assert scores == sorted(scores, reverse=True) and sum(each.confidence for each in result.nbest) <= 1.01
    for hypothesis in result.nbest:
        assert hypothesis.score == hypothesis.scores.acoustic < 0.0
        assert all(0 < sure < 1 for sure in (hypothesis.confidence, *(word.confidence for word in hypothesis.words)))
        assert recognizer.tokenizer.decode(hypothesis.tokens) == hypothesis.text
        assert " ".join(word.text for word in hypothesis.words) == hypothesis.text
        times = [time for word in hypothesis.words for time in (word.start, word.end)]
        assert all(0.0 <= time <= 2.0 for time in times) and times[::2] == sorted(times[::2])
        assert all(word.start < word.end for word in hypothesis.words)


@pytest.mark.parametrize("length", [0, 1, 2, 79, 80, 159, 399, 400, 479, 480, 481, 4_799, 4_800, 4_801])
@pytest.mark.parametrize("beam", [1, 4])
def test_short_audio_gives_a_result(tiny_bundle, length, beam):
    recognizer = Recognizer(tiny_bundle, DecodingSettings(beam=beam, nbest=beam))
    session = recognizer.session(16_000)
    session.feed(chirp(length))
    result = session.finish()
    assert result.nbest
    if length < 400:
        assert [hypothesis.text for hypothesis in result.nbest] == [""]
    assert result.seconds == length / 16_000
    np.testing.assert_allclose(session.features, logmel(chirp(length)), atol=1e-4)


def test_texts_that_several_token_sequences_spell_do_not_shorten_the_list(tiny_bundle, monkeypatch):
    waveform = noise(32_000)
    expected = Recognizer(tiny_bundle, DecodingSettings(beam=16, nbest=16)).recognize(waveform, 16_000)
    decode = tiny_bundle.tokenizer.decode
    monkeypatch.setattr(type(tiny_bundle.tokenizer), "decode", lambda self, tokens: decode(tokens)[:8])
    result = Recognizer(tiny_bundle, DecodingSettings(beam=4, nbest=4)).recognize(waveform, 16_000)
    assert len({hypothesis.text[:8] for hypothesis in expected.nbest}) >= 4
    assert len({hypothesis.text for hypothesis in result.nbest}) == len(result.nbest) == 4
    monkeypatch.setattr(type(tiny_bundle.tokenizer), "decode", lambda self, tokens: "one")
    result = Recognizer(tiny_bundle, DecodingSettings(beam=2, nbest=2)).recognize(waveform, 16_000)
    assert [hypothesis.text for hypothesis in result.nbest] == ["one"] and result.nbest[0].score < 0.0


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_channels_are_mixed_down_where_asked(recognizer, dtype):
    left = chirp(16_000, 1)
    stereo = (np.stack([left, chirp(16_000, 2)], axis=1) * (1 if dtype is np.float32 else 32_767)).astype(dtype)
    session = recognizer.session(16_000, mix_down=True)
    for at in range(0, 16_000, 999):
        session.feed(stereo[at : at + 999])
    mixed = stereo.astype(np.float32).mean(axis=1) / np.float32(1 if dtype is np.float32 else 32_768)
    found = session.finish()
    np.testing.assert_allclose(session.features, logmel(mixed), atol=1e-3)
    assert found.text == recognizer.recognize(mixed, 16_000).text
    session.reset()
    session.feed(left)  # one channel is fine too
    assert session.finish().text == recognizer.recognize(left, 16_000).text
    with pytest.raises(AudioError, match=r"expected one channel.*mix_down"):
        recognizer.session(16_000).feed(stereo)


def test_an_error_in_the_middle_of_decoding_ends_the_utterance(tiny_bundle):
    real = Recognizer(tiny_bundle).transducer
    failing = True

    class Failing:
        architecture, windows, predict, join = real.architecture, real.windows, real.predict, real.join

        def encode(self, features, state=None):
            if failing:
                raise KeyboardInterrupt
            return real.encode(features, state)

    recognizer = Recognizer(tiny_bundle, transducer=Failing())
    session = recognizer.session(16_000)
    with pytest.raises(KeyboardInterrupt):
        session.feed(chirp(16_000))
    failing = False
    assert not session.open
    for call in (lambda: session.feed(chirp(1)), session.finish):
        with pytest.raises(AudioError, match=r"was interrupted by an error; call reset\(\)"):
            call()
    session.reset()
    session.feed(chirp(16_000))
    expected = without_id(recognizer.recognize(chirp(16_000), 16_000))
    assert replace(session.finish(), utterance_id="", offset=0.0) == expected


@pytest.mark.parametrize(
    ("offset", "seconds", "beam", "times"),
    [(-9.0, 2.0, 4, 8), (9.0, 2.0, 4, 1), (-9.0, 16.0, 4, 4), (-9.0, 64.1, 4, 1), (-9.0, 2.0, 1, 1)],
)
def test_an_unsure_list_is_searched_again_wider(offset: float, seconds: float, beam: int, times: int, tiny_bundle):
    """Not where the best text is likely right, nor greedily; the longer an utterance, the less wide."""

    def texts(settings: DecodingSettings, text: Curve) -> list[str]:
        calibration = Calibration(text=text, greedy_text=Curve(offset=-9.0))
        bundle = tiny_bundle.with_combination(replace(tiny_bundle.combination, confidence=calibration))
        recognizer = Recognizer(bundle, settings, Rescorer(bundle).rescore)
        return [each.text for each in recognizer.recognize(clip, 16_000).nbest][:beam]

    clip, sure = chirp(round(seconds * 16_000)), Curve(offset=9.0)
    given, wider = DecodingSettings(beam, beam), DecodingSettings(times * beam, times * beam, threshold=6.0)
    plain, better = texts(given, sure), texts(wider, sure)
    assert texts(given, Curve(offset=offset)) == (better if times > 1 else plain) and (times == 1 or plain != better)


@pytest.mark.parametrize("silences", [(), (16_000,), (16_000, 40_000), (3_200,)])
def test_searched_again_as_before_it_finds_what_it_found(silences: tuple[int, ...], recognizer):
    """Without the encoder, and over pauses too."""
    pauses = [np.zeros(length, np.float32) for length in silences]
    parts = itertools.chain.from_iterable(
        (noise(12_000, seed), pause) for seed, pause in enumerate([*pauses, chirp(0)])
    )
    session, _, _ = run(recognizer, np.concatenate(list(parts)))
    stream = session._stream
    found = paths(search_again(stream, recognizer.transducer, recognizer.settings))
    expected = {path.tokens: path for path in paths(stream.beam)}
    assert [path.tokens for path in found] == list(expected)
    for path in found:
        assert path.frames == expected[path.tokens].frames
        assert path.score == pytest.approx(expected[path.tokens].score, abs=1e-4)


def test_an_error_in_the_second_pass_ends_the_utterance(tiny_bundle):
    session = Recognizer(tiny_bundle, rescore=lambda hypotheses: 1 / 0).session(16_000)
    session.feed(chirp(16_000))
    for error in (ZeroDivisionError, AudioError):
        with pytest.raises(error, match=r"division|call reset\(\)"):
            session.finish()


def test_a_long_utterance_costs_no_more_a_second(tiny_bundle):
    """Work for a block does not grow with the blocks before it."""
    session = Recognizer(tiny_bundle, DecodingSettings(beam=1, nbest=1, max_seconds=10_000.0)).session(16_000)
    chunk, spent = chirp(160_000), []
    for _ in range(24):
        start = time.process_time()
        session.feed(chunk)
        spent.append(time.process_time() - start)
    assert sorted(spent[-8:])[2] < 2.0 * sorted(spent[:8])[4]


def test_bad_samples_leave_the_utterance_as_it_was(recognizer):
    waveform, session = chirp(16_000), recognizer.session(16_000)
    session.feed(waveform[:9_000])
    for samples, message in ((np.array([0.0, np.nan], np.float32), "found nan at sample 1"), ([0.0], "found list")):
        with pytest.raises(AudioError, match=message):
            session.feed(samples)
    session.feed(waveform[9_000:])
    assert without_id(session.finish()) == without_id(recognizer.recognize(waveform, 16_000))
    with pytest.raises(AudioError, match="found sample rate 1000 Hz"):
        recognizer.session(1_000)


def test_an_utterance_has_an_end(tiny_bundle):
    recognizer = Recognizer(tiny_bundle, DecodingSettings(max_seconds=1.0))
    session = recognizer.session(16_000)
    session.feed(chirp(16_000))
    with pytest.raises(AudioError, match=r"found an utterance of 1\.10 s, expected at most 1 s"):
        session.feed(chirp(1_600))
    assert without_id(session.finish()) == without_id(recognizer.recognize(chirp(16_000), 16_000))


def test_reset_begins_another_utterance(recognizer):
    session = recognizer.session(16_000)
    session.feed(chirp(16_000, 1))
    first = session.finish()
    for call in (lambda: session.feed(chirp(1)), session.finish):
        with pytest.raises(AudioError, match=r"call reset\(\)"):
            call()
    session.reset()
    assert session.seconds == 0.0 and session.features.shape == (0, 64)
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

    first = Recognizer(tiny_bundle, DecodingSettings(nbest=3)).recognize(chirp(16_000), 16_000)
    second = Recognizer(tiny_bundle, DecodingSettings(nbest=3), backwards).recognize(chirp(16_000), 16_000)
    assert len(first.nbest) == len(second.nbest) == 3
    assert len(seen) == 64  # all that the wider beam kept, not only those that were asked for
    assert second.text == seen[-1].text
