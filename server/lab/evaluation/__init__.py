"""How well a recognizer does on a corpus: its errors, how far its confidences can be trusted, and systems compared."""
