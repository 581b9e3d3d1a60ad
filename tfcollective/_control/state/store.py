"""A key-value store with versions: pure, bounded, JSON values only."""

from __future__ import annotations

import json

from tfcollective._control.messages import Entry, Refusal

_MAX_KEY_LENGTH = 512


class Store:
    """Keys to JSON values, at most ``max_bytes`` of them together. Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[str, Entry] = {}
        self._sizes: dict[str, int] = {}
        self._used = 0

    def put(self, key: str, value: object) -> int:
        """Sets the value and returns its version; raises Refusal when the store is full."""
        if not key or len(key) > _MAX_KEY_LENGTH:
            raise Refusal(f"a key has 1 to {_MAX_KEY_LENGTH} characters")
        size = len(key) + _size(value)
        used = self._used - self._sizes.get(key, 0) + size
        if used > self._max_bytes:
            raise Refusal(f"the store is full: {used} bytes wanted, {self._max_bytes} allowed")
        entry = self._entries.get(key)
        version = 1 if entry is None else entry.version + 1
        self._entries[key] = Entry(value, version)
        self._sizes[key] = size
        self._used = used
        return version

    def remove(self, key: str) -> None:
        """Forgets the key; its versions start again. Nothing if there is none."""
        self._entries.pop(key, None)
        self._used -= self._sizes.pop(key, 0)

    def get(self, key: str) -> Entry | None:
        """The newest value, or None."""
        return self._entries.get(key)

    def newer(self, key: str, version: int) -> Entry | None:
        """The newest value if its version is above ``version``, else None."""
        entry = self._entries.get(key)
        return entry if entry is not None and entry.version > version else None


def _size(value: object) -> int:
    """Returns how much room a value takes. A segment of a blob, which is a long text, is not encoded again for that."""
    return len(value) if isinstance(value, str) and value.isascii() else len(json.dumps(value))
