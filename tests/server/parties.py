"""A server in this process, an operator and devices that speak the wire protocol without the SDK."""

from __future__ import annotations

import json
import secrets
import time
import warnings
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from numpy.typing import NDArray
from safetensors.numpy import save

from device_sdk.wire.messages import Problem
from device_sdk.wire.signing import BODY_DIGEST, DEVICE, NONCE, SIGNATURE, TIMESTAMP, signed_digest
from server.aggregation.weights_file import parse_weights
from server.rate_limit import Rate
from server.registry.initial import InitialModel
from server.settings import Rates, ServerSettings
from tests.server.databases import fresh

WORDS = 40
DIGEST = "d" * 64
ENROLMENT, OPERATOR = "enrolment-token", "operator-token"
HEADERS = {"Authorization": f"Bearer {OPERATOR}"}
BIAS = "joiner.output.bias"
SHAPES = {"encoder.0.W": (8, 6), BIAS: (5,)}
OFTEN = Rate(per_second=1e6, burst=1e6)
NO_NOISE = 1e8
"""An epsilon at which the noise of every draw is zero but for one chance in e^(10^4)."""
UNPROTECTED = {"marginals": {"epsilon": NO_NOISE}, "no_privacy": True}

Http = Any
"""A test client or a real one: both are httpx clients."""


def initial(words: int = WORDS, seed: int = 0) -> InitialModel:
    rng = np.random.default_rng(seed)
    weights = {
        "encoder.0.W": rng.normal(size=(8, 6)).astype(np.float32),
        "joiner.output.bias": rng.normal(size=5).astype(np.float32),
        "features.mean": np.zeros(4, np.float32),
        "features.scale": np.ones(4, np.float32),
    }
    names = ("<unk>", *(f"word{number}" for number in range(1, words)))
    return InitialModel(weights, "base-1", DIGEST, np.full(words, 1 / words), names)


def settings(folder: Path, **changes: Any) -> ServerSettings:
    """Of a server over ``folder``, whose database is there unless ``changes`` name one elsewhere."""
    fields: dict[str, Any] = {
        "database": str(folder / "server.db"),
        "blobs": folder / "blobs",
        "enrolment_token": ENROLMENT,
        "operator_token": OPERATOR,
        "marginals_cap": float("inf"),
        "words_cap": float("inf"),
        "tick_seconds": 0.05,
        "rates": Rates(OFTEN, OFTEN, OFTEN),
    }
    found = ServerSettings(**fields | changes)
    if "://" not in found.database:
        fresh(Path(found.database))
    return found


def serve(folder: str, started: InitialModel, **changes: Any) -> None:
    """What a server's process runs, which says in ``ready.json`` where it listens."""
    from server.serve import run

    ready = Path(folder) / "ready.json"
    run(settings(Path(folder), **changes), started, host="127.0.0.1", port=0, ready_file=ready)


@contextmanager
def serving(folder: Path, *, words: int = WORDS, evaluate: Any = None, rehearse: Any = None, **changes: Any) -> Any:
    """A client of a server in this process; what the server raises reaches the client as it would over a socket."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # starlette's advice on which http library its client should use
        from fastapi.testclient import TestClient
    from server.app import create_app

    app = create_app(settings(folder, **changes), initial(words), evaluate, rehearse)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def until(found: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What ``found`` gives, once that is something."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
    return value


def refusal(answer: Any) -> tuple[int, str]:
    """Status and code of a problem."""
    return answer.status_code, Problem.model_validate_json(answer.content).code


class Party:
    """A device: a key, the id the server gave it, and signed requests."""

    def __init__(self, http: Http, url: str = "") -> None:
        self.http, self.url = http, url
        self.key = Ed25519PrivateKey.generate()
        self.public = b64encode(self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
        self.id = ""

    def enrol(self) -> Party:
        answer = self.http.request("POST", f"{self.url}/v1/enrol", json={"token": ENROLMENT, "public_key": self.public})
        assert answer.status_code == 200, answer.text
        self.id = answer.json()["device_id"]
        return self

    def headers(self, method: str, path: str, round_id: str | None, body: bytes, *, at: Any = None) -> dict[str, str]:
        nonce, stamp = secrets.token_hex(12), int(time.time() if at is None else at)
        signature = self.key.sign(signed_digest(method, path, round_id, sha256(body).hexdigest(), nonce, stamp))
        return {
            DEVICE: self.id,
            NONCE: nonce,
            TIMESTAMP: str(stamp),
            SIGNATURE: b64encode(signature).decode(),
            BODY_DIGEST: sha256(body).hexdigest(),
        }

    def post(self, path: str, body: bytes, round_id: str | None = None, at: float | None = None) -> Any:
        return self.http.post(self.url + path, content=body, headers=self.headers("POST", path, round_id, body, at=at))

    def check_in(self, **changes: Any) -> Any:
        return self.post("/v1/check-in", self.arrival(**changes))

    def arrival(self, **changes: Any) -> bytes:
        """The body of a check-in."""
        message = {"device_id": self.id, "bundle_format": 1, "model_version": "base-1", "marginals_version": 0}
        return json.dumps(message | {"words_digest": DIGEST} | changes).encode()

    def counts(self, round_id: str, counts: Mapping[int, int], /, **changes: Any) -> bytes:
        message = {"utterances": 1, "counts": {str(word): count for word, count in counts.items()}}
        return json.dumps(self._header(round_id) | {"words_digest": DIGEST} | message | changes).encode()

    def send_counts(self, round_id: str, counts: Mapping[int, int], /, **changes: Any) -> Any:
        return self.post(f"/v1/rounds/{round_id}/marginals", self.counts(round_id, counts, **changes), round_id)

    def words(self, round_id: str, /, *words: str, **changes: Any) -> bytes:
        return json.dumps(self._header(round_id) | {"words_digest": DIGEST, "words": words} | changes).encode()

    def send_words(self, round_id: str, /, *words: str, **changes: Any) -> Any:
        return self.post(f"/v1/rounds/{round_id}/words", self.words(round_id, *words, **changes), round_id)

    def delta(self, round_id: str, arrays: Any = None, /, value: float = 0.01, **changes: Any) -> bytes:
        header = self._header(round_id) | {"model_version": "base-1", "utterances": 1} | changes
        return save(dict(arrays or values_of(value)), metadata={"header": json.dumps(header)})

    def send_delta(self, round_id: str, /, *arguments: Any, **changes: Any) -> Any:
        return self.post(f"/v1/rounds/{round_id}/deltas", self.delta(round_id, *arguments, **changes), round_id)

    def _header(self, round_id: str) -> dict[str, Any]:
        return {"report_id": secrets.token_hex(8), "device_id": self.id, "round_id": round_id}


Devices = Callable[[int], list[Party]]
"""Enrols so many."""


def values_of(value: float) -> dict[str, NDArray[np.float32]]:
    """Of every parameter that a round moves."""
    return {name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()}


def weights_of(http: Http, version: str) -> dict[str, NDArray[np.float32]]:
    return parse_weights(http.get(f"/v1/models/{version}").content)


def bias_moved(http: Http, version: str) -> NDArray[np.float32]:
    """Since the first model."""
    return weights_of(http, version)[BIAS] - initial().weights[BIAS]


class Operator:
    """Operator requests that must succeed."""

    def __init__(self, http: Http, url: str = "") -> None:
        self.http, self.url = http, f"{url}/v1/operator/"

    def get(self, path: str, **content: Any) -> dict[str, Any]:
        return self._checked(self.http.request("GET", self.url + path, headers=HEADERS, **content))

    def post(self, path: str, **content: Any) -> dict[str, Any]:
        return self._checked(self.http.request("POST", self.url + path, headers=HEADERS, **content))

    def open(self, **settings: Any) -> str:
        return str(self.post("rounds", json={"settings": UNPROTECTED | settings})["id"])

    def close(self, round_id: str) -> dict[str, Any]:
        return self.post(f"rounds/{round_id}/close")

    @staticmethod
    def _checked(answer: Any) -> dict[str, Any]:
        assert answer.is_success, answer.text
        return answer.json()
