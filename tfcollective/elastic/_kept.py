"""A result that outlasts the way back to the last commit."""

from __future__ import annotations

from typing import Any


class KeptResult:
    """The last result since the last commit of this rank that a later attempt need not compute again.

    After a change of the world, a program does what it has done since the commit again, in the same order: results are
    found again by their place in this order. Whoever keeps one checks that it still holds. One is kept, as each may be
    large.
    """

    def __init__(self) -> None:
        self._within = False
        self._places = 0
        self._place, self._result = -1, None

    def begin(self) -> None:
        """The function of ``elastic.run`` is called from the last commit on."""
        self._within, self._places = True, 0

    def close(self) -> None:
        """It has returned: nothing is done again."""
        self._within = False
        self.forget()

    def forget(self) -> None:
        """There is a new commit."""
        self._places = 0
        self._place, self._result = -1, None

    def next_place(self) -> int | None:
        """The place of the result that is computed next; None where nothing would be done again."""
        if not self._within:
            return None
        self._places += 1
        return self._places - 1

    def at(self, place: int) -> Any:
        """What an earlier attempt has kept at this place; None if nothing."""
        return self._result if place == self._place else None

    def keep(self, place: int, result: Any) -> None:
        """Keeps a result instead of earlier ones; what an earlier attempt has kept at a later place stays."""
        if place >= self._place:
            self._place, self._result = place, result


kept_result = KeptResult()
