"""Frame-synchronous beam search for a transducer: batched, merging the alignments of equal prefixes.

K: frames; J: joiner size.

The joiner runs on all frames of a block at once for every prefix that enters the beam, the predictor once for every
prefix, both in batches. Frames that extend no hypothesis only add a blank to each. Hypotheses too far behind to be
extended are set aside: their blanks are added when somebody asks for their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.streaming import AnyArchitecture, StatelessPredictor, StreamingArchitecture
from device_sdk.decoding.block import BLANK, Block, Heard, settled
from device_sdk.decoding.contextual_biasing import Guide
from device_sdk.decoding.prefixes import Alignments, Aside, Emission, Prefix, PrefixTree
from device_sdk.decoding.settings import DecodingSettings
from device_sdk.runtimes.protocol import Transducer

Float = NDArray[np.float32]

_BLOCK = 12  # frames that the joiner looks ahead for a prefix that may be dropped on the next one
_CACHED_PREFIXES = 64  # few, for memory's sake: an utterance never needs much, however long it is


@dataclass(frozen=True, slots=True)
class Beam:
    """Hypotheses after ``frame`` frames, best first: distinct prefixes of ``tree``, and the alignments of each. aside:
    those of ``prefixes``, its last ones, whose last blanks are still to be added; their scores in ``alignments`` are
    estimates. heard: the blocks that they need for it. context: what counts as tokens besides a prefix's own where the
    best is that by score per token; 0 where it is that by score."""

    tree: PrefixTree
    prefixes: tuple[Prefix, ...]
    alignments: tuple[Alignments, ...]
    frame: int = 0
    aside: Mapping[Prefix, Aside] = field(default_factory=dict)
    heard: Heard = ()
    context: int = 0


@dataclass(frozen=True, slots=True)
class Path:
    """One prefix of a beam. score: the transducer's, nats; frames: that emitted each token; hotword, pieces: added to
    it for phrases and by the n-gram over pieces; length: what both are divided by to compare paths."""

    tokens: tuple[int, ...]
    score: float
    frames: tuple[int, ...]
    hotword: float = 0.0
    pieces: float = 0.0
    length: int = 1

    @property
    def rank(self) -> float:
        """What paths are sorted by, nats."""
        return (self.score + self.hotword + self.pieces) / self.length


def start(transducer: Transducer, guide: Guide | None = None) -> Beam:
    """The beam before the first frame: the empty prefix. guide: what else than the transducer the search follows."""
    tree = PrefixTree(transducer, guide=guide)
    return Beam(tree, (tree.root,), (Alignments(0.0),))


def paths(beam: Beam) -> tuple[Path, ...]:
    """The hypotheses of a beam, best first, with all of their scores."""
    tree = beam.tree
    found = []
    aside = settled(tree, beam.aside, beam.heard, beam.frame) if beam.aside else {}
    for prefix, estimated in zip(beam.prefixes, beam.alignments, strict=True):
        alignments = aside.get(prefix, estimated)
        hotword = 0.0 if tree.guide is None else tree.guide.whole(prefix.guided)
        length = beam.context + prefix.depth if beam.context else 1
        pieces, frames = prefix.guided.language, alignments.frames()
        found.append(Path(prefix.tokens(), alignments.score, frames, hotword, pieces, length))
    return tuple(sorted(found, key=lambda path: -path.rank))


def advance(beam: Beam, encoded: Float, transducer: Transducer, settings: DecodingSettings) -> Beam:
    """The beam after the next frames. encoded: [K, J] float32, encoder outputs with the joiner's projection. Scores are
    exact sums over the alignments with at most ``settings.symbols_per_frame`` tokens a frame, as long as neither
    ``beam`` nor ``threshold`` removes one of them."""
    tree, modified, context = beam.tree, settings.search == "modified", beam.context
    if modified and not settings.symbols_per_frame:
        context = _context(transducer.architecture)
    for at in range(0, len(encoded), _BLOCK):
        if len(tree) > _CACHED_PREFIXES + 16 * settings.beam:
            tree.compact(beam.prefixes)
        frames = encoded[at : at + _BLOCK]
        block = Block(tree, beam.prefixes, beam.alignments, beam.aside, beam.heard, beam.frame, frames)
        block.search(settings.beam, settings.threshold, settings.symbols_per_frame, modified)
        prefixes, alignments, frame = tuple(block.prefixes), tuple(block.alignments), beam.frame + len(frames)
        beam = Beam(tree, prefixes, alignments, frame, block.aside, block.heard, context)
    return beam


def _context(architecture: AnyArchitecture) -> int:
    """Blanks before the first token, which count for the length of a prefix."""
    match architecture:
        case StreamingArchitecture(predictor=StatelessPredictor(context=context)):
            return context
    return 1


def restart(beam: Beam) -> Beam:
    """The same hypotheses, to which the prediction network listens as to an empty one: a pause may mislead it."""
    aside = settled(beam.tree, beam.aside, beam.heard, beam.frame) if beam.aside else {}
    alignments = [aside.get(prefix, each) for prefix, each in zip(beam.prefixes, beam.alignments, strict=True)]
    ranks = [each.score + prefix.bonus for prefix, each in zip(beam.prefixes, alignments, strict=True)]
    order = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=True)
    prefixes = tuple(beam.prefixes[at] for at in order)
    beam.tree.restart(prefixes)
    return Beam(beam.tree, prefixes, tuple(alignments[at] for at in order), beam.frame, context=beam.context)


def greedy(beam: Beam, encoded: Float, transducer: Transducer, settings: DecodingSettings) -> Beam:
    """The beam of one hypothesis after the next frames: the most probable symbol, until it is blank. encoded: [K, J]
    float32. At most ``settings.symbols_per_frame`` tokens a frame, 0 for one without a blank. One alignment scores."""
    prefix, score, emissions = beam.prefixes[0], beam.alignments[0].score, beam.alignments[0].emissions
    tree, here, total, emitted = beam.tree, 0, len(encoded), 0
    if len(tree) > _CACHED_PREFIXES:
        tree.compact([prefix])
    while here < total:
        rest = encoded[here : here + _BLOCK]
        scores = transducer.join(rest[None], tree.predicted([prefix])[None])[0]
        best, blanks = scores.argmax(axis=1).tolist(), scores[:, BLANK].tolist()
        if emitted and emitted == settings.symbols_per_frame:
            best[0] = BLANK
        for jump, token in enumerate(best):
            if token != BLANK:
                score += scores.item(jump, token)
                emitted = emitted + 1 if jump == 0 else 1
                here += jump
                emissions = Emission(beam.frame + here, emissions)
                if not settings.symbols_per_frame:
                    here, emitted = here + 1, 0
                prefix = tree.extend([prefix], [token])[0]
                break
            score += blanks[jump]
        else:
            here, emitted = here + len(rest), 0
    return replace(beam, prefixes=(prefix,), alignments=(Alignments(score, 0.0, emissions),), frame=beam.frame + total)
