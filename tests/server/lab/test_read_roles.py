"""Which voices every command and every experiment reads: recordings of all others are damaged, and it runs; recordings
of its own are, and it does not."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np
import pytest
import soundfile

from device_sdk import Bundle, DataError, cli
from device_sdk.features.logmel import FeatureSettings
from server.lab.benchmarks import corrections, decode
from server.lab.corpora.pack import pack
from server.lab.corpora.roles import ROLES, SPLIT, UNHEARD, Role
from server.lab.evaluation.gate import word_error_gate
from server.lab.rehearsal.pseudo_devices import pseudo_devices
from server.lab.simulation.population import Shape, gather
from server.lab.training import runs
from tests.architecture.sources import ROOT, source_files
from tests.server.lab.rehearsal.test_pseudo_devices import plan

pytest.importorskip("espeakng_loader", reason="espeak-ng is not installed (idiolect-server[simulate])")

Read = Callable[[Bundle, Path], None]
"""A command on a bundle and a folder that holds ``barista``. Raises DataError for a damaged recording."""


def write_barista(folder: Path, readable: Collection[Role], each: int = 3) -> str:
    """A voice of each role, with damaged recordings where the role is not to be read. Returns its KIND:PATH."""
    voices = {role: SPLIT["barista"][role][0] for role in ROLES}
    return write_voices(folder, dict.fromkeys(voices.values(), each), {voices[role] for role in readable})


def write_voices(folder: Path, voices: Mapping[str, int], readable: Collection[str] | None = None) -> str:
    """So many orders of each voice, damaged where it is none of ``readable``. Returns its KIND:PATH."""
    (folder / "audio").mkdir(parents=True)
    rows, noise = [], np.random.default_rng(0)
    for voice, number in ((voice, number) for voice, count in voices.items() for number in range(count)):
        row = {"id": f"{voice}-{number}", "voice_group": voice, "text": "a latte", "slots": {"drink": "latte"}}
        rows.append(json.dumps(row))
        path = folder / "audio" / f"{row['id']}.flac"
        path.write_text("damaged")
        if readable is None or voice in readable:
            soundfile.write(path, 0.1 * noise.standard_normal(8_000), 16_000)
    (folder / "barista.jsonl").write_text("\n".join(rows))
    return f"barista:{folder}"


def command(*words: str) -> Read:
    def run(bundle: Bundle, data: Path) -> None:
        given = [word.format(bundle=bundle.path, source=f"barista:{data / 'barista'}") for word in words]
        if cli.main([*given, "--data", f"barista:{data / 'barista'}"]):
            raise DataError("the command has said what is wrong")

    return run


def simulation(bundle: Bundle, data: Path) -> None:
    """What ``idiolect simulate``, examples.fleet and examples.attackers hear."""
    gather(f"barista:{data / 'barista'}", 1, Shape(), bundle.manifest.training.get("voices", {}), data / "speech")


def benchmark(bundle: Bundle, data: Path) -> None:
    corpus = decode.unseen_speech(bundle)
    assert corpus is not None
    decode.word_errors(bundle, corpus)


def corrected(bundle: Bundle, data: Path) -> None:
    assert sum(said.load().size > 0 for user in corrections.real_users(bundle) for said in user.said) == 6


def held_out(bundle: Bundle, data: Path) -> None:
    word_error_gate(bundle.path, [f"barista:{data / 'barista'}"], 0.1)(bundle.weights, bundle.weights)


def rehearsing(bundle: Bundle, data: Path) -> None:
    devices = pseudo_devices(bundle.path, [f"barista:{data / 'barista'}"])
    list(devices(bundle.weights, plan("gradient", pseudo_devices=1, batch_size=len(devices)), 1))


def trained(bundle: Bundle, data: Path) -> None:
    runs.real_recordings(f"barista:{data / 'barista'}")


def watched(bundle: Bundle, data: Path) -> None:
    mixture, _, examples, _ = runs._prepared([], [f"barista:{data / 'barista'}"], [], FeatureSettings(), 0.3, None)
    assert {recording.speaker for recording in mixture.recordings} == {SPLIT["barista"]["base"][0]}
    assert {example.source.partition(".")[2] for example in examples} == {"development", *UNHEARD}


def packed(bundle: Bundle, data: Path) -> None:
    pack([f"barista:{data / 'barista'}"], data / "packed", 1.0)


EVALUATE, TUNE = ("evaluate", "{bundle}", "--greedy"), ("--dry-run", "--speeds", "0.9,1.1", "{bundle}")
READS: dict[str, tuple[str, Read, set[Role]]] = {
    "evaluate": ("server.lab.commands.evaluate", command(*EVALUATE), {"devices", "heldout"}),
    "evaluate --voices": (
        "server.lab.commands.evaluate",
        command(*EVALUATE, "--voices", "base", "--voices", "development"),
        {"base", "development"},
    ),
    "tune rescoring": ("server.lab.commands.tune", command("tune", "rescoring", *TUNE), {"development"}),
    "tune confidence": ("server.lab.commands.tune", command("tune", "confidence", *TUNE), {"development"}),
    "tune second-moments": ("server.lab.commands.tune", command("tune", "second-moments", *TUNE), {"base"}),
    "simulate": ("server.lab.simulation.population", simulation, {"devices", "heldout"}),
    "bench decode": ("server.lab.benchmarks.decode", benchmark, {"devices", "heldout"}),
    "bench corrections": ("server.lab.benchmarks.corrections", corrected, {"devices", "heldout"}),
    "serve --held-out": ("server.lab.evaluation.gate", held_out, {"development", "devices", "heldout"}),
    "serve --rehearsal": ("server.lab.rehearsal.pseudo_devices", rehearsing, {"base"}),
    "train rnnt, speech": ("server.lab.training.runs", trained, {"base"}),
    "corpora pack": ("server.lab.corpora.pack", packed, {"base", "development"}),
    "train rnnt, watched": ("server.lab.training.runs", watched, set(ROLES)),
}
"""What reads speech -> the module that opens it, how it is run, the roles that it reads."""


@pytest.mark.parametrize("name", READS)
def test_it_reads_the_roles_that_it_should_and_no_others(name: str, tiny_bundle, tmp_path: Path, monkeypatch) -> None:
    _, read, roles = READS[name]
    monkeypatch.setattr(runs, "_WATCHED_PER_SOURCE", 1)
    for number, readable in enumerate([roles, *(roles - {role} for role in sorted(roles))]):
        data = tmp_path / str(number)
        monkeypatch.setenv("IDIOLECT_DATA", str(data))
        write_barista(data / "barista", readable)
        if readable == roles:
            read(tiny_bundle, data)
        else:
            with pytest.raises(DataError):
                read(tiny_bundle, data)


def test_everything_that_opens_speech_is_in_the_table() -> None:
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in source_files("device_sdk", "export", "server", "examples")
        if "open_corpus" in path.read_text("utf-8") and path.name != "__init__.py"
    }
    assert found == {module for module, _, _ in READS.values()}


@pytest.mark.parametrize("role", ROLES)
def test_evaluate_says_whose_voices_it_hears(role: Role, tiny_bundle: Bundle, tmp_path: Path, capsys) -> None:
    source = write_barista(tmp_path / "barista", ROLES, each=1)
    assert cli.main(["evaluate", str(tiny_bundle.path), "--greedy", "--json", "--data", source, "--voices", role]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["roles"] == {role: 1} and "3 of 4 utterances left out" in said.err
    assert ("trained on or chosen by" in said.err) == (role not in UNHEARD)
