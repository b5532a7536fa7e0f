"""The cache of n-best lists on disk."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from device_sdk.errors import DataError
from examples.liu_2020.lists import listeners, open_cache, read_clients, write_client
from tests.examples.liu_2020.made import WORDS, background, client


def write_cache(folder: Path) -> Path:
    for stage, names in (("development", ("A1a", "A1b")), ("test", ("B1a", "C1a", "C1b"))):
        for number, name in enumerate(names):
            write_client(folder / stage, client(name, number + len(stage)))
    (folder / "words.txt").write_text(WORDS.text())
    save_file({"unigram": background()}, folder / "background.safetensors")
    (folder / "about.json").write_text('{"perplexity": {"neural": {"test.txt": 80.0}}}')
    return folder


def test_lists_come_back_as_they_were_written(tmp_path: Path) -> None:
    clients = [client("A1a", 1), client("B1a", 2)]
    for each in clients:
        write_client(tmp_path, each)
    assert read_clients(tmp_path) == clients and read_clients(tmp_path, ["B1a"]) == clients[1:]
    before = (tmp_path / "A1a.jsonl.gz").read_bytes()
    write_client(tmp_path, clients[0])
    assert (tmp_path / "A1a.jsonl.gz").read_bytes() == before
    names = {"speaker", "words", "texts", "errors", "acoustic", "neural", "ngram"}
    assert json.loads(gzip.decompress(before).splitlines()[0]).keys() == names, "no transcript"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no gzip", "no readable n-best lists"),
        (gzip.compress(b"{}\n", mtime=0), r"line 1: (?s:.)*Field required"),
        (gzip.compress(b'{"speaker":"a","words":1,"texts":["x"],"errors":[0,1],"acoustic":[0]}', mtime=0), "lengths"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "A1a.jsonl.gz").write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_clients(tmp_path)


def test_an_empty_folder_and_lists_without_scores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run the first pass"):
        read_clients(tmp_path)
    bare = client("A1a", 1)
    bare = replace(bare, utterances=tuple(replace(nbest, neural=None) for nbest in bare.utterances))
    with pytest.raises(DataError, match="run the second pass"):
        listeners([bare], WORDS)


def test_a_cache_is_opened_and_its_faults_are_named(tmp_path: Path) -> None:
    held = open_cache(write_cache(tmp_path))
    assert [each.name for each in held.test] == ["B1a", "C1a", "C1b"]
    assert held.about["perplexity"]["neural"]["test.txt"] == 80.0
    write_client(tmp_path / "test", client("A1a", 1))
    with pytest.raises(DataError, match=r"\['A1a'\] in development and test"):
        open_cache(tmp_path)
    save_file({"unigram": np.full(3, 1 / 3)}, tmp_path / "background.safetensors")
    with pytest.raises(DataError, match="3 probabilities for 81 words"):
        open_cache(tmp_path)
    (tmp_path / "words.txt").unlink()
    with pytest.raises(DataError, match=r"words\.txt: no such file"):
        open_cache(tmp_path)
