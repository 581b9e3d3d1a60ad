"""The last output of a job's nodes, for launchers that show it: pure, bounded."""

from __future__ import annotations

from collections import deque

from tfcollective._control.messages import OutputPage, OutputPiece

_MAX_PAGE_BYTES = 1 << 20


class OutputLog:
    """Keeps the newest pieces, ``max_bytes`` of them together. Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: deque[OutputPiece] = deque()
        self._used = 0
        self._end = 0

    def add(self, piece: OutputPiece) -> None:
        """Appends a piece; the oldest ones make room for it."""
        self._pieces.append(piece)
        self._used += len(piece.text)
        self._end += 1
        while self._used > self._max_bytes and len(self._pieces) > 1:
            self._used -= len(self._pieces.popleft().text)

    def since(self, position: int) -> OutputPage | None:
        """Returns the next page for a reader that has read up to ``position``; None if there is nothing new."""
        first = self._end - len(self._pieces)
        if position >= self._end:
            return None
        start = max(position, first)
        chosen: list[OutputPiece] = []
        size = 0
        for index in range(start - first, len(self._pieces)):
            size += len(self._pieces[index].text)
            if chosen and size > _MAX_PAGE_BYTES:
                break
            chosen.append(self._pieces[index])
        return OutputPage(tuple(chosen), start + len(chosen), start - position)
