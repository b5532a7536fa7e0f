"""A bundle from a transducer that another project trained: its graphs, and word list, background and n-gram from text.

The work is done by a process of its own: a graph that brings onnxruntime down ends that process, not the caller."""

import multiprocessing
import resource
import tempfile
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.bundle.bundle import Tokenizer
from device_sdk.bundle.streaming import subsets_of
from device_sdk.errors import BundleError, DataError, IdiolectError
from export.bundles import write_bundle
from export.imports.importer import import_sherpa
from rescoring.combination import CombinationWeights
from rescoring.words import WordList
from server.lab.training import ngram
from server.lab.training.pieces import read_sentences, word_list

SECONDS = 1_800.0
"""An import that takes longer is given up."""
MEMORY = 24 << 30
"""Bytes of address space that it may take."""
WEIGHTS = CombinationWeights(language_model=0.25, ngram_share=1.0, word_bonus=1.5, marginal=0.25, smoothing=5.0)
_LEAST = 0.5  # added to every count of the background, so that a listed word that the text lacks has a probability


@dataclass(frozen=True, slots=True)
class Import:
    """folder: of sherpa-onnx's layout. texts: files with a sentence a line, which word list, background and n-gram come
    from. order: of the n-gram; least: how often a word must be there to be listed. licence: a file, the folder's own
    where none is given. origin: where the model is from, for the card."""

    folder: Path
    out: Path
    texts: tuple[Path, ...]
    name: str = "imported"
    version: str = "1"
    order: int = 3
    least: int = 1
    licence: Path | None = None
    origin: str = ""


def import_bundle(given: Import) -> dict[str, Any]:
    """Write the bundle at ``given.out`` and return what it holds, by names of the command's JSON. Raises IdiolectError
    that names file and field for what cannot be imported; what stood at ``out`` is untouched then."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_import, args=(given, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        summary = ours.recv() if ours.poll(SECONDS) else None
    except EOFError:  # it died
        summary = None
    finally:
        ours.close()
        process.join(5.0)
        if process.is_alive():
            process.kill()
            process.join()
    if isinstance(summary, IdiolectError):
        raise summary
    if summary is None:
        how = f"ended with {process.exitcode}" if process.exitcode else f"took more than {SECONDS:.0f} s"
        raise BundleError(f"{given.folder}: its graphs cannot be run: the process that tried them {how}")
    found: dict[str, Any] = summary
    return found


def _import(given: Import, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        pipe.send(_made(given))
    except IdiolectError as error:
        pipe.send(error)
    except MemoryError:
        pipe.send(BundleError(f"{given.folder}: takes more than {MEMORY >> 30} GB of memory; expected a smaller model"))
    pipe.close()


def _made(given: Import) -> dict[str, Any]:
    imported = import_sherpa(given.folder)
    tokenizer = Tokenizer(imported.tokenizer_model)
    english = tokenizer.letters <= set("abcdefghijklmnopqrstuvwxyz'")
    sentences = [line for path in given.texts for line in read_sentences(path, english)]
    if not sentences:
        raise DataError("text: found none; give sentences with --text, one a line: word list and n-gram come from them")
    words = WordList.parse("\n".join(word_list((), sentences, given.least)) + "\n")
    identified = [words.ids(sentence) for sentence in sentences]
    counts = Counter(word for sentence in identified for word in sentence)
    background = np.array([counts[word] + _LEAST for word in range(len(words))])
    model = ngram.estimate(identified, words, given.order)
    sizes = imported.architecture
    card = {
        "description": f"A streaming transducer in sherpa-onnx's layout ({imported.family}), imported as it is.",
        "origin": given.origin or given.folder.name,
        "data": "of the model: see its origin; of word list and n-gram: "
        + ", ".join(path.name for path in given.texts),
        "parameters": sizes.parameter_count(),
        "limits": "Confidence is not calibrated. Rescoring weights are defaults: idiolect tune rescoring finds better.",
    }
    with tempfile.TemporaryDirectory() as folder:
        arpa = Path(folder) / "ngram.arpa.gz"
        ngram.write_arpa(model, arpa)
        write_bundle(
            given.out,
            name=given.name,
            version=given.version,
            architecture=sizes,
            weights=imported.weights,
            tokenizer_model=imported.tokenizer_model,
            words=words,
            background=background / background.sum(),
            combination=WEIGHTS,
            card=card,
            licence=_licence(given),
            models={arpa.name: arpa.read_bytes()},
            features=imported.features,
            graphs=imported.graphs,
            training={"imported": imported.family, "metadata": dict(imported.metadata)}
            | ({"not_differentiable": imported.not_differentiable} if imported.not_differentiable else {}),
        )
    return {
        "bundle": str(given.out),
        "family": imported.family,
        "parameters": sizes.parameter_count(),
        "pieces": sizes.pieces,
        "mel_bins": sizes.mel_bins,
        "window_ms": 10 * sizes.window,
        "shift_ms": 10 * sizes.shift,
        "frame_ms": 10 * sizes.subsampling_factor,
        "learns": ["output"] if imported.not_differentiable else list(subsets_of(sizes)),
        "not_differentiable": imported.not_differentiable,
        "words": len(words),
        "ngrams": [len(table) for table in model.probabilities],
    }


def _licence(given: Import) -> str:
    for path in (given.licence, given.folder / "LICENSE", given.folder / "LICENSE.txt"):
        if path is not None and path.is_file():
            return path.read_text(encoding="utf-8", errors="replace")
    if given.licence is not None:
        raise DataError(f"{given.licence}: no such file; give the text of the model's licence")
    return "The model's licence is that of its origin, which its importer knows; none came with its files.\n"
