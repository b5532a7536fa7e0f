"""The search can fail: whatever is planted, in any form and packed in any way, is found, and nothing else is."""

import io
import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import save

from tests.device_sdk.privacy import canaries
from tests.device_sdk.privacy.canaries import ENCODINGS, Canary, Needles

RNG = np.random.default_rng(7)
SOUND = RNG.normal(0.0, 0.1, 8).astype(np.float32)
FEATURES = RNG.normal(-6.0, 3.0, 8).astype(np.float32)
PLANTED = (
    canaries.text("quixotry"),
    canaries.text("zürichsee vélodrome"),
    canaries.numbers("sound", SOUND),
    canaries.numbers("features", FEATURES),
    canaries.tokens("pieces", [3, 200, 17, 255, 90, 41]),
    canaries.tokens("large pieces", [3, 2000, 17, 255, 90, 41]),
)
NEEDLES = Needles(PLANTED)


def haystack(needle: bytes, at: int) -> bytes:
    return RNG.bytes(5000 + at) + needle + RNG.bytes(5000)


@pytest.mark.parametrize("canary", PLANTED, ids=lambda canary: canary.name)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_form_of_every_canary_is_found_in_every_packing(canary: Canary, encoding: str) -> None:
    for at, (form, needle) in enumerate(canary.forms.items()):
        found = NEEDLES.found(haystack(ENCODINGS[encoding](needle), at))
        assert any(what.startswith(canary.name) for what in found), (form, encoding)


def test_nothing_is_found_where_nothing_is() -> None:
    for seed in range(4):
        assert NEEDLES.found(np.random.default_rng(seed).bytes(1 << 20)) == set()
    assert NEEDLES.found(b"") == NEEDLES.found(b"abc") == set()
    assert NEEDLES.found(json.dumps({"words": ["mocha", "latte"] * 999, "pieces": list(range(256))}).encode()) == set()


@pytest.mark.parametrize(
    "leak",
    [
        save({"features": np.concatenate([np.zeros(3, np.float32), FEATURES, np.ones(5, np.float32)])}),
        pickle.dumps({"sound": SOUND}),
        json.dumps({"tokens": [1, 3, 200, 17, 255, 90, 41, 5]}).encode(),
        json.dumps({"said": "the zürichsee vélodrome please"}).encode(),
        json.dumps({"said": "the zürichsee vélodrome please"}, ensure_ascii=False).encode("utf-16"),
        str(FEATURES.tolist()).encode(),
        b"Quixotry!",
        b"x" + SOUND.astype("<f2").tobytes(),
    ],
    ids=["safetensors", "pickle", "json list", "escaped json", "utf-16 json", "repr", "title", "half floats"],
)
def test_leaks_as_programs_make_them_are_found(leak: bytes) -> None:
    assert NEEDLES.found(haystack(leak, 1))
    archive = io.BytesIO()
    np.savez_compressed(archive, leak=np.frombuffer(leak, np.uint8))
    assert NEEDLES.found(haystack(archive.getvalue(), 3))
