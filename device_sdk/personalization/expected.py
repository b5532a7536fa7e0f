"""What a user confirmed, for recognition to expect: what rescoring weighs must first have been found."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from device_sdk.decoding.hotwords import DEFAULT_BOOST, LONGEST_PHRASE, Hotword, Hotwords
from device_sdk.personalization.vocabulary import times

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle
    from device_sdk.personalization.vocabulary import VocabularyEntry

EVIDENCE = 20.0
"""Words of nobody in particular that are added to the user's: with few of their own, none is surprising."""
SURPRISE = 3.0
"""Nats by which log q(w) / u(w) must exceed 0: common words gain nothing, and would push others out of the beam."""
PROVEN = 8.0
"""Nats that a phrase of the vocabulary earns beside a hotword's once it was confirmed: a name that is on no list costs
the recognizer some 25. With 12 it is heard where nobody says it."""
NAMED_AFTER = (
    *("call", "phone", "ring", "dial", "text", "message", "email", "tell", "ask", "did", "talk to", "speak to"),
    *("message to", "text to", "email to", "mail to", "call to", "write to", "reply to", "say to", "message from"),
    *("messages from", "text from", "email from", "emails from", "mail from", "call from", "calls from"),
    *("meeting with", "lunch with", "dinner with", "chat with", "talk with", "speak with"),
)
"""After these, names are looked for once more: English, as people tell machines whom to reach."""
SOMEBODY = "contact"
"""The kind of a phrase that is a person's name though all of its words are on the public list."""
MOST = 1000
"""Words that are expected at a time, the most surprising first."""
SAID = 200
"""Phrases that are looked for where an utterance is unsure, those said most first."""


def expecting(
    given: Hotwords | None,
    vocabulary: Iterable[VocabularyEntry],
    confirmed: Mapping[str, float],
    own: Mapping[str, float],
    said: Mapping[str, float],
    bundle: Bundle,
    before: Hotwords | None = None,
) -> Hotwords | None:
    """The app's phrases for an utterance, the user's vocabulary, and the user's own words, each as far as it is no
    phrase or spelling of what comes before. confirmed: word -> in how many utterances. own: :func:`own_words`. said:
    :func:`said_before`. Phrases of the vocabulary are looked for once more where names are said, if they may be names:
    contacts, and words outside the public list. A room or a lamp there would take the place of what people do call. In
    the search they earn what hotwords do, and :data:`PROVEN` more once the user confirmed them; with words outside the
    public list, no spelling and no confirmation nothing: a thousand such names push other words out of the beam, and
    what they earn brings none of them in. before: what was expected last, whose automaton stays where the phrases are
    the same."""
    phrases = [] if given is None else list(given.phrases)
    taken = {text for phrase in phrases for text in (phrase.phrase, *phrase.spellings)}
    letters = bundle.tokenizer.letters | {" "}
    for entry in vocabulary:
        spellings = tuple(each for each in entry.spellings if each not in taken and letters.issuperset(each))
        if entry.phrase not in taken and letters.issuperset(entry.phrase):
            proven = times(entry.phrase, confirmed) > 0
            listed = all(word in bundle.words for word in entry.phrase.split())
            likely, named = proven or spellings or listed, entry.kind == SOMEBODY or not listed
            earned = (DEFAULT_BOOST if likely else 0.0) + (PROVEN if proven else 0.0)
            phrases.append(Hotword(entry.phrase, earned, spellings, NAMED_AFTER if named else (), listed))
            taken.update((entry.phrase, *spellings))
    phrases += [Hotword(word, earned) for word, earned in own.items() if word not in taken]
    if len(phrases) == (0 if given is None else len(given.phrases)):
        found = given
    else:
        found = before if before is not None and before.phrases == tuple(phrases) else Hotwords.build(phrases)
    return found if found is None or found.said == said else replace(found, said=said)


def own_words(confirmed: Mapping[str, float], bundle: Bundle, least: float) -> dict[str, float]:
    """Words that the user says far more often than others do -> nats that each earns, the most surprising first:

        least * s / SURPRISE, where s = log(q(w) / u(w)) > SURPRISE, q(w) = c(w) / (sum of c + EVIDENCE)

    in halves of a nat: few change with an utterance, and with them the automaton. It is lambda * log(g / u), eq. 1 of
    Liu & Peng 2020, where the beam can use it; q is their eq. 4 without its background. least: nats for the least
    surprising; 0 for none at all. Of a word outside the list u is that of the rarest listed one. Words that the
    bundle's tokenizer cannot spell, and those too long to be listened for, are left out."""
    total, rarest = sum(confirmed.values()) + EVIDENCE, float(bundle.background.min())
    found: dict[str, float] = {}
    for word, count in confirmed.items() if least else ():
        (listed,) = bundle.words.ids(word) or (0,)
        expected = float(bundle.background[listed]) if listed else rarest
        surprise = math.log(count / total / expected)
        if surprise > SURPRISE and len(word) <= LONGEST_PHRASE and bundle.tokenizer.letters.issuperset(word):
            found[word] = surprise
    chosen = sorted(found, key=lambda word: (-found[word], word))[:MOST]
    return {word: round(2 * least * found[word] / SURPRISE) / 2 for word in chosen}


def said_before(confirmed: Mapping[str, float], own: Collection[str], bundle: Bundle) -> dict[str, float]:
    """Phrases that the user confirmed and of which a word is one of their own -> log q, q = c / (words confirmed +
    EVIDENCE). confirmed: phrase -> c, in how many utterances. own: :func:`own_words`."""
    total, letters = sum(count * len(phrase.split()) for phrase, count in confirmed.items()), bundle.tokenizer.letters
    known = [each for each in confirmed if len(each) <= LONGEST_PHRASE and letters.issuperset(each.replace(" ", ""))]
    theirs = sorted((each for each in known if not set(own).isdisjoint(each.split())), key=lambda p: (-confirmed[p], p))
    return {phrase: math.log(confirmed[phrase] / (total + EVIDENCE)) for phrase in theirs[:SAID]}
