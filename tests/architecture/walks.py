"""The walks that docs/architecture.md describes, run and traced: prints each as JSON, {name: [files, calls back]}."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from device_sdk import SAMPLE_AUDIO, Device
from device_sdk.audio.files import given_audio
from tests.architecture.walk import Tracer, Walk

DELTA = {"encoder.0.W": np.full((8, 6), 0.01, np.float32), "joiner.output.bias": np.full(5, 0.01, np.float32)}


def listening(tracer: Tracer) -> Walk:
    """A device's session with a hotword: from ``feed`` to the n-best list."""
    samples, rate = given_audio(SAMPLE_AUDIO, None)
    with tempfile.TemporaryDirectory() as folder, Device.open(folder, key=bytes(32)) as device:
        session = device.session(rate, hotwords=["mocha"])
        with tracer.walk() as walk:
            for start in range(0, len(samples), rate // 10):
                session.feed(samples[start : start + rate // 10])
            session.finish()
    return walk


def reporting(tracer: Tracer) -> tuple[Walk, Walk]:
    """A delta over HTTP until it is stored; the round's closing until its weights, noised by the server, are
    published."""
    from starlette.testclient import TestClient

    from server.app import create_app
    from tests.server.parties import Operator, Party, initial, settings

    with tempfile.TemporaryDirectory() as folder:
        quiet = settings(Path(folder), tick_seconds=3600.0)  # the loop that moves rounds would be traced, too
        with TestClient(create_app(quiet, initial())) as http:
            operator, device = Operator(http), Party(http).enrol()
            plan = {"deltas": {"clip_norm": 1.0}, "goal": 5, "weighting": "uniform", "noise_multiplier": 1.0}
            round_id = operator.open(marginals=None, **plan)
            version = operator.get("status")["model_version"]
            with tracer.walk() as stored:
                answer = device.send_delta(round_id, DELTA, model_version=version)
            assert answer.status_code == 200, answer.text
            with tracer.walk() as published:
                done = operator.close(round_id)
            assert done["state"] == "published", done
    return stored, published


def main() -> None:
    tracer = Tracer()
    try:
        stored, published = reporting(tracer)
        walks = {"audio": listening(tracer), "report": stored, "release": published}
    finally:
        tracer.close()
    print(json.dumps({name: [walk.files, sorted(walk.back)] for name, walk in walks.items()}))


if __name__ == "__main__":
    main()
