"""The versioned messages that device and server share. Importable alone: pydantic and the standard library only."""
