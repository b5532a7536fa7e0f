"""The vocabulary of a device's user, for app and user to see and to change."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from device_sdk.checks import read_utf8
from device_sdk.errors import ConfigurationError
from device_sdk.model_state import ModelState
from device_sdk.personalization import cache as caches
from device_sdk.personalization import vocabulary as phrases
from device_sdk.personalization.vocabulary import Source, VocabularyEntry
from device_sdk.transcripts import entries, in_letters, transcript, transcripts, unaccented
from device_sdk.utterances import Utterances


class Vocabulary:
    """Names and words that a device listens for, whatever the utterance: those that the app added, and those that its
    user gave in corrections. Kept encrypted, sent to nobody, erased by :meth:`Device.forget
    <device_sdk.device.Device.forget>`. Made by :attr:`Device.vocabulary <device_sdk.device.Device.vocabulary>`."""

    def __init__(self, model_state: ModelState, utterances: Utterances) -> None:
        self._model_state, self._utterances = model_state, utterances

    def add(self, phrase: str, spellings: Iterable[str] = (), kind: str = "") -> VocabularyEntry:
        """Listens for a phrase from the next utterance on, without accents that the model cannot write. spellings:
        other words as which it is heard, each of which stands for it in results. kind: the app's word for what it is.
        Who is there already takes the new spellings on. ConfigurationError: no phrase, letters that the model cannot
        spell, or more than 200 of them."""
        spelled = transcripts(spellings, "vocabulary.spellings", ConfigurationError)
        (added,) = self.add_all([VocabularyEntry(phrase, spelled, kind)])
        return added

    def add_all(
        self, many: Iterable[str | VocabularyEntry], kind: str = "", source: Source = "app"
    ) -> tuple[VocabularyEntry, ...]:
        """Many at once, all of them or none; see :meth:`add`. source: of those that do not come from contacts."""
        self._model_state.check_open()
        now, letters = time.time(), self._model_state.base.tokenizer.letters
        new: list[VocabularyEntry] = []
        for number, each in enumerate(entries(many, "vocabulary", ConfigurationError)):
            entry = each if isinstance(each, VocabularyEntry) else VocabularyEntry(each, kind=kind)  # type: ignore[arg-type]
            phrase, *spellings = (
                in_letters(text, letters, f"vocabulary[{number}]", ConfigurationError)
                for text in (entry.phrase, *entry.spellings)
            )
            origin: Source = "contacts" if entry.source == "contacts" else source
            own = replace(entry, phrase=phrase, spellings=tuple(spellings), source=origin, added=now, refused=())
            new.append(own)
        with self._model_state.together():
            self._model_state.keep_phrases(phrases.with_entries(self._model_state.phrases, new))
            return self._counted(self._model_state.phrases.entries[each.phrase] for each in new)

    def add_contacts(self, vcard: str | Path) -> tuple[VocabularyEntry, ...]:
        """The names of a vCard file, or of its text, each whole and by the given name. Accents that the model's pieces
        lack are left out; names in another script are passed over. ConfigurationError: no vCard."""
        text = read_utf8(vcard, ConfigurationError) if isinstance(vcard, Path) else vcard
        return self.add_all(phrases.contact_entries(text, self._model_state.base.tokenizer.letters))

    def list(self, kind: str | None = None) -> tuple[VocabularyEntry, ...]:
        """All phrases, or those of a kind, in the order in which they came."""
        self._model_state.check_open()
        with self._model_state.store.guard:
            found = self._model_state.phrases.entries.values()
            return self._counted(each for each in found if kind is None or each.kind == kind)

    def remove(self, phrase: str) -> bool:
        """Listens for a phrase no longer, nor for its words because the user confirmed them. Whether it was there."""
        self._model_state.check_open()
        letters = self._model_state.base.tokenizer.letters
        name = unaccented(transcript(phrase, "phrase", ConfigurationError), letters)
        with self._model_state.together():
            known = self._model_state.phrases
            if name not in known.entries:
                return False
            self._model_state.keep_phrases(phrases.without(known, name))
            self._model_state.keep_cache(caches.without(self._model_state.cache, name.split()))
            return True

    def undo(self) -> tuple[str, ...]:
        """Takes back what the last correction made of the vocabulary, and the correction itself where it was not
        learned from yet. What was added or removed since stays. Returns the phrases that are otherwise now, if any."""
        self._model_state.check_open()
        with self._model_state.together():
            known = self._model_state.phrases
            if known.last is None:
                return ()
            self._model_state.keep_phrases(phrases.undone(known))
            if not self._utterances.retract(known.last.utterance_id):
                gone = [word for word, before in known.last.before.items() if before is None]
                self._model_state.keep_cache(caches.without(self._model_state.cache, gone))
            return tuple(known.last.before)

    def export(self) -> str:
        """Everything in it as JSON, for its user."""
        return json.dumps([asdict(each) for each in self.list()], indent=2, ensure_ascii=False)

    def _counted(self, entries: Iterable[VocabularyEntry]) -> tuple[VocabularyEntry, ...]:
        confirmed = caches.word_counts(self._model_state.cache.confirmed)
        return tuple(replace(each, count=phrases.times(each.phrase, confirmed)) for each in entries)
