"""The packaged bundle on real voices that it was not trained on."""

import os
from functools import partial

import pytest

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.personalization.rescorer import Rescorer
from server.lab.corpora import open_corpus
from server.lab.corpora.roles import UNHEARD
from server.lab.evaluation.scores import evaluate

VOICES = {"barista": ("v02", "v03", "v05", "v08", "v24", "v35", "v46"), "fsdd": ("lucas",)}


@pytest.fixture(scope="module")
def systems() -> dict[str, Recognizer]:
    bundle = Bundle.open()
    return {
        "greedy": Recognizer(bundle, DecodingSettings(beam=1, nbest=1)),
        "rescored": Recognizer(bundle, DecodingSettings(), Rescorer(bundle).rescore),
    }


@pytest.mark.data
@pytest.mark.skipif("IDIOLECT_DATA" not in os.environ, reason="IDIOLECT_DATA names no folder of recordings")
@pytest.mark.parametrize("kind", VOICES)
def test_the_rescored_beam_beats_greedy_and_its_confidences_can_be_trusted(kind: str, systems) -> None:
    corpus = open_corpus(f"{kind}:{os.environ['IDIOLECT_DATA']}/{kind}", UNHEARD)
    corpus = corpus.of_speakers(*VOICES[kind])
    found = {name: evaluate(partial(each.recognize, sample_rate=16_000), corpus) for name, each in systems.items()}
    greedy, rescored, oracle = found["greedy"].wer, found["rescored"].wer, found["rescored"].oracle_wer(8)
    assert greedy is not None and rescored is not None and oracle is not None and oracle < rescored < greedy - 0.01
    words = found["rescored"].words()
    assert words is not None and words.nce is not None and words.ece < 0.08 and words.nce > 0.1
