"""Texts that PostgreSQL cannot hold end in an answer that says so, as on SQLite in one that finds nothing."""

from pathlib import Path

from device_sdk.wire.messages import Problem
from tests.server.parties import HEADERS, Party, serving


def test_nul_and_numbers_without_end(place: str, tmp_path: Path) -> None:
    with serving(tmp_path, database=place) as http:
        party = Party(http).enrol()
        for method, path in (
            ("GET", "/v1/models/a%00b"),
            ("GET", f"/v1/marginals/{10**40}"),
            ("GET", f"/v1/marginals/-{10**40}"),
            ("GET", "/v1/operator/rounds/%00"),
            ("POST", "/v1/operator/rounds/%00/close"),
            ("POST", "/v1/operator/models/%00/publish?note=%00"),
            ("POST", "/v1/operator/devices/%00/revoke"),
            ("GET", f"/v1/operator/rounds?limit={10**30}"),
        ):
            answer = http.request(method, path, headers=HEADERS)
            assert answer.status_code in {404, 422}, (method, path, answer.text)
            assert Problem.model_validate_json(answer.content).code
        answer = party.post("/v1/rounds/%00/marginals", party.counts("r", {1: 1}), "\0")
        assert 400 <= answer.status_code < 500, answer.text
        answer = http.post("/v1/operator/models/base-1/publish?note=%00", headers=HEADERS)
        assert answer.status_code in {200, 422}, answer.text
