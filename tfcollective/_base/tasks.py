"""Tasks: the roles of a job's processes, and their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tfcollective._base.errors import ConfigError

CHIEF = "chief"
WORKER = "worker"
EVALUATOR = "evaluator"
TENSORBOARD = "tensorboard"
PS = "ps"  # a role of other systems: known only to be refused with advice
PS_POLICIES = ("error", "exit0")  # what becomes of a ps process
TRAINER_TYPES = (CHIEF, WORKER)  # in rank order
SIDE_TYPES = (EVALUATOR, TENSORBOARD)  # outside the world, without a rank
NO_RANK = -1  # what stands for the rank of an auxiliary task
_MAX_DIGITS = 9  # Python refuses to read numbers of thousands of digits, by an error of its own

PS_ADVICE = (
    "there are no parameter servers here: every trainer holds all variables, and gradients are averaged by all-reduce. "
    "Leave the ps tasks out, and give their cores to workers"
)


def is_number(text: str) -> bool:
    """True if a text from outside is a whole number that an index, a rank or a size may be: ASCII digits, not many."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


@dataclass(frozen=True)
class TaskKey:
    """A role in a job, for example ``worker:3``; it stays the same when the process is replaced."""

    type: str
    index: int

    def __post_init__(self) -> None:
        if not self.type.isidentifier() or self.type != self.type.lower():
            raise ConfigError(f"task type: expected a lower-case word, got {self.type!r}")
        if self.index < 0:
            raise ConfigError(f"task index: expected 0 or more, got {self.index}")
        if self.type == CHIEF and self.index != 0:
            raise ConfigError(f"there is one chief, chief:0: make chief:{self.index} a worker")

    @classmethod
    def parse(cls, text: str) -> TaskKey:
        """Reads ``"worker:3"``; raises ConfigError for anything else."""
        kind, colon, index = text.partition(":")
        if not colon or not is_number(index):
            raise ConfigError(f"expected a task as TYPE:INDEX, for example worker:3, got {text[:80]!r}")
        return cls(kind, int(index))

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    @property
    def is_trainer(self) -> bool:
        """True if the task takes part in collectives and so has a rank."""
        return self.type in TRAINER_TYPES


def trainers(tasks: Iterable[TaskKey]) -> tuple[TaskKey, ...]:
    """The tasks that have a rank, in rank order: the chief, then workers by index.

    The chief is rank 0 and worker i is rank i + 1, or rank i where there is no chief.
    """
    chosen = [task for task in tasks if task.is_trainer]
    return tuple(sorted(chosen, key=lambda task: (TRAINER_TYPES.index(task.type), task.index)))


def workers(count: int) -> tuple[TaskKey, ...]:
    """``worker:0`` to ``worker:count-1``."""
    return tuple(TaskKey(WORKER, index) for index in range(count))
