"""Which differences a server gives, and that they and whole weights are served in ranges."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.checkin.updates import difference
from server.aggregation.weights_file import dump_weights, parse_weights
from server.registry.differences import RECENT
from tests.server.parties import Operator, initial

BASE = initial().weights


def moved(step: float, seed: int = 1) -> bytes:
    """The tensors of the server's first model, all of them moved a little, so that a difference is worth it."""
    rng = np.random.default_rng(seed)
    return dump_weights({name: values + np.float32(step * rng.random()) for name, values in BASE.items()})


def get(http: Any, path: str, **headers: str) -> Any:
    return http.get(f"/v1/models/{path}", headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_a_difference_leads_to_the_very_bytes(http: Any, operator: Operator) -> None:
    operator.post("models/v2", content=dump_weights(BASE | {"joiner.output.bias": np.ones(5, np.float32)}))
    whole, found = get(http, "v2"), get(http, "v2/from/base-1")
    assert found.status_code == 200 and len(found.content) < len(whole.content)
    assert difference.apply(BASE, found.content, len(whole.content)) == whole.content
    etag = found.headers["etag"]
    assert etag != whole.headers["etag"]
    assert get(http, "v2/from/base-1", If_None_Match=etag).status_code == 304


@pytest.mark.parametrize("path", ["v2", "v2/from/base-1"])
def test_ranges(http: Any, operator: Operator, path: str) -> None:
    operator.post("models/v2", content=moved(1e-3))
    whole = get(http, path)
    size, etag = len(whole.content), whole.headers["etag"]
    rest = get(http, path, Range="bytes=50-", If_Range=etag)
    assert (rest.status_code, rest.headers["content-range"]) == (206, f"bytes 50-{size - 1}/{size}")
    assert rest.content == whole.content[50:] and rest.headers["etag"] == etag
    for other in ('"other"', f"W/{etag}"):
        anew = get(http, path, Range="bytes=50-", If_Range=other)
        assert (anew.status_code, anew.content) == (200, whole.content)
    past = get(http, path, Range=f"bytes={size}-")
    assert (past.status_code, past.headers["content-range"]) == (416, f"bytes */{size}")


def test_what_is_not_offered(http: Any, operator: Operator) -> None:
    for number in range(2, RECENT + 4):
        operator.post(f"models/v{number}", content=moved(1e-3, number))
    operator.post("models/hidden", content=moved(1e-3), params={"published": False})
    newest = f"v{RECENT + 3}"

    old = (404, "no_difference")
    for path, expected in (
        (f"{newest}/from/v{RECENT + 2}", (200, "")),
        (f"{newest}/from/base-1", (200, "")),  # what every device begins with
        (f"{newest}/from/v3", old),  # long ago
        (f"{newest}/from/hidden", old),  # on no device
        (f"{newest}/from/{newest}", old),
        (f"v{RECENT + 2}/from/v{RECENT + 1}", old),  # not current
        (f"{newest}/from/none", (404, "unknown_model")),
        ("none/from/base-1", (404, "unknown_model")),
    ):
        found = get(http, path)
        assert (found.status_code, "" if found.status_code == 200 else found.json()["code"]) == expected, path


def test_what_would_be_hardly_shorter_is_not_offered(
    http: Any, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.registry.differences.WORTH", 0.3)  # of so small a file most is its header
    operator.post("models/v2", content=moved(1e-3))
    for _ in range(2):
        assert get(http, "v2/from/base-1").json()["code"] == "no_difference"


def test_a_rollout_and_its_way_back_are_offered(http: Any, operator: Operator) -> None:
    operator.post("models/v2", content=moved(1e-3), params={"published": False})
    assert get(http, "v2/from/base-1").status_code == 404
    operator.post("rollout", json={"version": "v2"})
    assert get(http, "v2/from/base-1").status_code == 200
    assert get(http, "base-1/from/v2").status_code == 200
    operator.post("rollout/roll-back")
    assert get(http, "v2/from/base-1").status_code == 404
    back = get(http, "base-1/from/v2")
    content = get(http, "base-1").content
    assert difference.apply(parse_weights(get(http, "v2").content), back.content, len(content)) == content


def test_what_leads_nowhere_any_more_is_removed(http: Any, operator: Operator, tmp_path: Path) -> None:
    for number in (2, 3):
        operator.post(f"models/v{number}", content=moved(1e-3, number))
        assert get(http, f"v{number}/from/base-1").status_code == 200
    newest = operator.get("models")["models"][0]["sha256"]
    kept = [path.name for path in (tmp_path / "blobs" / "differences").iterdir()]
    assert len(kept) == 1 and kept[0].endswith(newest)


def test_many_ask_at_once(http: Any, operator: Operator) -> None:
    operator.post("models/v2", content=moved(1e-3))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: get(http, "v2/from/base-1").content, range(16)))
    assert len(set(found)) == 1
