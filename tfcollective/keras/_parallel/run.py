"""The run of Keras's trainer that this thread is in, for the adapters to Keras's versions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tfcollective import _runtime as runtime
from tfcollective.keras._global_batch import steps_per_execution
from tfcollective.keras._parallel.division import Division
from tfcollective.keras._parallel.interrupted import Attempt
from tfcollective.keras._parallel.results import result_of_all


class _Run(threading.local):
    """The state of Keras's trainer on this thread.

    Attributes:
        division: of the data; None: not divided.
        trains: the next iterator that Keras makes is that of the training data.
        evaluates: it evaluates or predicts.
        predicts: it predicts.
        turns: of an evaluation: the number of batches that ranks take at once, and the rank that takes the first.
        place: of the last batch that this rank has evaluated, among those of all ranks in this evaluation.
        agrees: in this evaluation, ranks agree after each turn whether it stops.
        endless: evaluates steps of data of an unknown length: their iterator.
        attempt: of an evaluation in an elastic job; None: nothing is kept of it.
        share: a variable: this rank's part of the last batch.
    """

    division: Division | None = None
    trains = False
    evaluates = False
    predicts = False
    turns = (1, 0)
    place = 0
    agrees = False
    endless: Any = None
    attempt: Attempt | None = None
    share: Any = 1.0


run = _Run()


@contextmanager
def running(
    division: Division, *, trains: bool = False, predicts: bool = False, attempt: Attempt | None = None
) -> Iterator[None]:
    """Within it, Keras trains, predicts, or else evaluates, with this division of the data."""
    before = dict(vars(run))
    run.division, run.trains, run.evaluates, run.predicts = division, trains, not trains, predicts
    run.attempt = attempt
    try:
        yield
    finally:
        vars(run).clear()
        vars(run).update(before)


def is_of_training() -> bool:
    """True for the iterator that Keras makes first in a run that trains; the next ones are of the validation."""
    first, run.trains = run.trains, False
    return first


def begin_at(place: int, together: int = 1) -> None:
    """An evaluation begins at this place of the data, from which on ranks take turns, `together` batches at once."""
    run.place = (runtime.rank() - place) % runtime.size() - runtime.size()
    run.turns = (together, place % runtime.size())


def result_of_run(model: Any, logs: dict[str, Any]) -> dict[str, Any]:
    """The results of an epoch or an evaluation over all ranks, which all call it; see ``result_of_all``."""
    if run.evaluates and run.attempt is not None and run.division is not None and not run.agrees:
        calls = run.place // runtime.size() + 1
        mine = run.division.places(calls * steps_per_execution(model))  # some may be behind the end of the data
        place = mine[calls - 1] if calls else -1
        return result_of_all(model, logs, place, "an evaluation", run.turns, run.attempt, mine)
    if run.evaluates:
        return result_of_all(model, logs, run.place, "an evaluation", run.turns)
    return result_of_all(model, logs, float(run.share), "an epoch")
