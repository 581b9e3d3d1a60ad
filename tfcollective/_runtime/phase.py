"""The phases of a rank between ``init()`` and ``shutdown()``, and the transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from tfcollective._base.errors import StateError


class Phase(Enum):
    """The phase of a :class:`~tfcollective._runtime.session.Session`."""

    WAITING = "waiting outside the world"  # a newcomer, alone until it is ready to train with the others
    IN_WORLD = "in the world"
    BETWEEN = "between two worlds"  # has left one; the next one has yet to form
    ENTERING = "entering a world"  # connected to its members; process sets are being formed again
    ENDED = "out of the job"

    @property
    def between_worlds(self) -> bool:
        """True if it has left a world and has yet to be in the next one."""
        return self in (Phase.BETWEEN, Phase.ENTERING)


_NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.BETWEEN, Phase.ENDED}),
    Phase.IN_WORLD: frozenset({Phase.BETWEEN, Phase.ENDED}),
    Phase.BETWEEN: frozenset({Phase.BETWEEN, Phase.ENTERING, Phase.ENDED}),  # itself: it asks again after an error
    Phase.ENTERING: frozenset({Phase.IN_WORLD, Phase.BETWEEN, Phase.ENDED}),
    Phase.ENDED: frozenset({Phase.ENDED}),
}


def next_phase(phase: Phase, then: Phase) -> Phase:
    """``then``; raises StateError if no rank goes there from ``phase``."""
    if then not in _NEXT[phase]:
        raise StateError(f"this process is {phase.value}: it cannot be {then.value} next")
    return then


class Training(Enum):
    """The state of a rank's trainings, as the coordinator of an elastic job knows it."""

    NONE = "none"  # none has been completed
    OPEN = "open"
    DONE = "done"  # the last one was completed
