"""Hours of audio in one session, utterance by utterance."""

import asyncio
import gc
import itertools
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.decoding import DecodingSettings, Endpointing, EndpointRule, Recognizer
from device_sdk.errors import AudioError, SessionError
from device_sdk.hypothesis import Partial, Result
from device_sdk.personalization.rescorer import Rescorer
from tests.signals import chirp, noise
from tests.speech import clips, conversation, cut, packaged


@pytest.fixture(scope="module")
def recognizer():
    bundle = packaged()
    return Recognizer(bundle, rescore=Rescorer(bundle).rescore)


@pytest.fixture(scope="module")
def sound():
    """24 s of sentences and silences."""
    return np.concatenate(list(conversation(24.0, seed=3)))


def results(events):
    return [replace(event, utterance_id="") for event in events if isinstance(event, Result)]


def chunks(samples, cuts):
    bounds = [0, *sorted(min(at, len(samples)) for at in cuts), len(samples)]
    return [samples[a:b] for a, b in itertools.pairwise(bounds)]


@pytest.fixture(scope="module")
def expected(recognizer, sound):
    return results(recognizer.session(16_000).segments([sound]))


def test_utterances_are_those_that_were_said(recognizer, sound, expected):
    assert len(expected) >= 4 and all(result.text for result in expected)
    for before, after in itertools.pairwise(expected):
        assert before.offset + before.seconds <= after.offset + 1e-9
    # Each is what its own audio gives: text of the stream is the sum of its utterances.
    for result in expected:
        start, length = round(16_000 * result.offset), round(16_000 * result.seconds)
        alone = recognizer.recognize(sound[start : start + length], 16_000)
        assert alone.text == result.text and alone.seconds == result.seconds
        assert [word.start for word in alone.nbest[0].words] == [word.start for word in result.nbest[0].words]


@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(0, 24 * 16_000), max_size=12))
def test_utterances_do_not_depend_on_the_chunks(recognizer, sound, expected, cuts):
    assert results(recognizer.session(16_000).segments(chunks(sound, cuts))) == expected


def test_partials_and_results_come_in_order(recognizer, sound):
    session = recognizer.session(16_000)
    partials: list[Partial] = []
    for event in session.segments(cut(iter([sound]), 4_000)):
        if isinstance(event, Partial):
            assert all(event.text.startswith(before.stable) for before in partials)
            partials.append(event)
            continue
        assert partials[-1].endpoint == (partials[-1].rule is not None)
        assert not any(partial.endpoint for partial in partials[:-1])
        partials.clear()
    assert session.open and session.seconds == 0.0 and session.offset == sound.size / 16_000


def test_silence_gives_nothing_and_costs_no_memory(recognizer):
    session = recognizer.session(16_000)

    def silence():
        for _ in range(400):
            assert len(session.features) <= 300
            yield np.zeros(1_600, np.float32)

    assert list(session.segments(silence())) == [] and session.offset == pytest.approx(40.0)


@pytest.mark.parametrize("lead", [2.0, 2.2, 2.3, 2.4, 2.5, 2.8, 4.6, 4.7, 4.8])
def test_the_end_of_a_silence_cuts_no_word(recognizer, lead):
    samples = np.concatenate([np.zeros(int(16_000 * lead), np.float32), clips()[0], np.zeros(32_000, np.float32)])
    found = results(recognizer.session(16_000).segments([samples]))
    assert lead - 2.4 - 0.6 <= found[0].offset <= lead and found[0].nbest[0].words[0].start + found[0].offset >= lead


def test_an_utterance_without_a_pause_is_cut_by_its_length(recognizer):
    rules = Endpointing(None, None, EndpointRule(min_utterance_length=1.5))
    speech = np.concatenate(clips())
    found = results(recognizer.session(16_000, endpointing=rules).segments(cut(iter([speech]), 3_000)))
    assert [result.seconds for result in found[:-1]] == [1.5] * (len(found) - 1)
    assert len(found) == speech.size // 24_000  # what is left is too short to say anything
    assert [result.offset for result in found] == pytest.approx([1.5 * index for index in range(len(found))])


@pytest.mark.parametrize("longest", [37, 40_000])
@pytest.mark.parametrize("seconds", [0.25, 0.4])
def test_the_longest_utterance_is_an_end_without_any_rule(tiny_bundle, longest, seconds):
    recognizer = Recognizer(tiny_bundle, DecodingSettings(max_seconds=seconds))
    samples = noise(3 * round(16_000 * seconds) + 50)
    found = results(recognizer.session(16_000, endpointing=None).segments(cut(iter([samples]), longest)))
    assert [result.offset for result in found] == pytest.approx([0.0, seconds, 2 * seconds])
    assert [result.seconds for result in found] == pytest.approx([seconds] * 3)


def test_hearing_stops_at_the_endpoint(recognizer):
    samples = np.concatenate([clips()[3], np.zeros(64_000, np.float32)])
    session = recognizer.session(16_000)
    partial, rest = session.hear(samples)
    assert partial.endpoint and partial.rule == "after_speech" and 0 < rest.size < 64_000
    assert session.seconds == (samples.size - rest.size) / 16_000
    with pytest.raises(AudioError, match=r"has reached its endpoint; call finish\(\) or reset\(\)"):
        session.hear(rest)
    # Feeding is another matter: a flag, and what follows is still heard. Without rules there is no endpoint.
    assert not recognizer.session(16_000, endpointing=None).feed(samples).endpoint
    assert session.feed(rest).endpoint and session.seconds == samples.size / 16_000


def test_callbacks_may_be_left_out(recognizer, sound, expected):
    only: list[Result] = []
    recognizer.session(16_000).listen([sound], on_result=only.append)
    assert results(only) == expected


def test_a_callback_that_fails_loses_no_audio(recognizer, sound, expected, caplog):
    session, heard, failures = recognizer.session(16_000), [], 0

    def fail(event):
        heard.append(event)
        raise ValueError(f"the app's own error {len(heard)}")

    rest = iter(chunks(sound, range(0, sound.size, 48_000)))
    while True:
        try:
            session.listen(rest, fail, fail)
        except ValueError as error:
            assert "the app's own error" in str(error)
            failures += 1
        else:
            break
    assert failures >= 4 and "a further callback of one chunk failed" in caplog.text and results(heard) == expected


def test_a_chunk_that_is_no_audio_leaves_the_session_as_it_was(recognizer, sound, expected):
    session, heard = recognizer.session(16_000), []
    for bad in (np.full(100_000, np.nan, np.float32), np.zeros((3, 3, 3), np.float32), [0.0]):
        with pytest.raises(AudioError):
            heard += session.segments([bad])
    parts = chunks(sound, [50_000, 170_000])
    spoiled = np.concatenate([parts[1], np.array([np.inf], np.float32)])
    events = session.segments(iter([parts[0], spoiled]))
    with pytest.raises(AudioError, match="found inf"):
        for event in events:
            heard.append(event)
    heard += session.segments(parts[1:])
    assert results(heard) == expected


async def feed(pieces, pause=0.0):
    for piece in pieces:
        await asyncio.sleep(pause)
        yield piece


def test_many_streams_in_one_event_loop(recognizer, sound, expected):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    async def one(longest):
        session = recognizer.session(16_000)
        return results([event async for event in session.stream(feed(cut(iter([sound]), longest)))])

    async def run():
        ticker = asyncio.create_task(tick())
        found = await asyncio.gather(*(one(longest) for longest in (3_000, 20_000, 400_000)))
        ticker.cancel()
        return found

    assert asyncio.run(run()) == [expected] * 3
    assert ticks >= 5  # chunks are of up to 24 s, and yet the loop went on


def test_a_stream_that_is_cancelled_leaves_the_session_to_others(recognizer, sound, expected):
    session = recognizer.session(16_000)

    async def run():
        task = asyncio.create_task(consume())
        await asyncio.sleep(0.03)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        session.reset()  # at once: no thread is in it any more
        return results([event async for event in session.stream(feed([sound]))])

    async def consume():
        async for _ in session.stream(feed([sound] * 50)):
            pass

    found = asyncio.run(run())
    begun = found[0].offset - expected[0].offset
    assert [replace(result, offset=0.0) for result in found] == [replace(result, offset=0.0) for result in expected]
    assert [result.offset - begun for result in found] == pytest.approx([result.offset for result in expected])


def test_leaving_the_loop_early(recognizer, sound, expected):
    session = recognizer.session(16_000)

    async def run():
        async for event in session.stream(feed([sound])):
            if isinstance(event, Result):
                return event
        raise AssertionError("no result")

    assert replace(asyncio.run(run()), utterance_id="") == expected[0]
    assert any(isinstance(event, Result) for event in session.segments([sound]))
    session.reset()
    session.feed(sound[:16_000])


def test_four_threads_give_what_one_gives(recognizer):
    def heard(clip):
        session = recognizer.session(16_000)
        return results([*session.segments(cut(iter([clip]), 1_000)), session.finish()])

    spoken = clips()[:4]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(heard, spoken * 3)) == [heard(clip) for clip in spoken] * 3


def test_two_threads_in_one_session_are_refused(tiny_bundle):
    recognizer = Recognizer(tiny_bundle)
    inside, leave = threading.Event(), threading.Event()

    class Slow:
        architecture, windows = recognizer.transducer.architecture, recognizer.transducer.windows
        predict, join = recognizer.transducer.predict, recognizer.transducer.join

        def encode(self, features, state=None):
            inside.set()
            assert leave.wait(30)
            return recognizer.transducer.encode(features, state)

    session = Recognizer(tiny_bundle, transducer=Slow()).session(16_000)
    first = threading.Thread(target=session.feed, args=(chirp(16_000),))
    first.start()
    assert inside.wait(30)
    for call in (lambda: session.feed(chirp(10)), lambda: session.hear(chirp(10)), session.finish, session.reset):
        with pytest.raises(SessionError, match="found two calls at once, expected one thread at a time"):
            call()
    assert session.partial().text == ""  # may be asked at any time
    leave.set()
    first.join()
    found = session.finish()
    assert replace(found, utterance_id="") == replace(recognizer.recognize(chirp(16_000), 16_000), utterance_id="")


def resident() -> float:
    """MB of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4_096 / 1e6


def listen_on(minutes: int) -> tuple[float, int]:
    """(by how many MB this process grows after the first half minute, how many utterances are heard)"""
    bundle = packaged()
    session = Recognizer(bundle, rescore=Rescorer(bundle).rescore).session(16_000)
    before, heard = np.inf, 0
    for event in session.segments(cut(conversation(60.0 * minutes, seed=1), 8_000)):
        if isinstance(event, Result):
            heard += 1
            if before == np.inf and event.offset > 30.0:
                before = resident()
    return resident() - before, heard


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
@pytest.mark.parametrize("minutes", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_listening_on_and_on_in_the_same_memory(minutes):
    """In a process of its own: what other tests left would be counted, or filled."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        grown, heard = pool.submit(listen_on, minutes).result()
    assert -np.inf < grown < 5.0 and heard > 8 * minutes
