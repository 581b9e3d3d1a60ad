"""The task of a training process, and its result; both travel as JSON.

A training process reads and writes them with the standard library alone: its environment may have TensorFlow and little
else. The process that starts it uses :mod:`tfcollective._base.codec`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

__all__ = ["MARK", "Epoch", "ProcessResult", "TrainingTask", "mark_line", "parse_mark"]

#: A line of a process's stdout that starts with it says that measuring begins or ends.
MARK = "tfcollective-bench-mark "


@dataclass(frozen=True)
class TrainingTask:
    """The part of a job that one process trains.

    Attributes:
        strategy: how it trains together with others, a name of ``strategies.STRATEGIES``.
        model: name of the model.
        size: training processes of the job.
        rank: this one's number among them; None: the strategy knows.
        steps: steps of one process per epoch.
        epochs: measured epochs; one more comes first and is dropped.
        steps_per_execution: steps per call of the training function.
        shards: into how many pieces a parameter server's variables may be split.
        cores: for each rank the cores to stay on; empty: anywhere.
        results: an existing directory; results go to ``RANK.json`` in it.
        timeout: how long (s) to wait for the other processes.
    """

    strategy: str
    model: str
    size: int
    rank: int | None
    steps: int
    epochs: int
    results: str
    steps_per_execution: int = 1
    shards: int = 1
    cores: tuple[tuple[int, ...], ...] = ()
    timeout: float = 120.0

    @classmethod
    def from_text(cls, text: str) -> TrainingTask:
        """Reads the task from JSON; ValueError or TypeError when the text is something else."""
        document = json.loads(text)
        document["cores"] = tuple(tuple(cores) for cores in document["cores"])
        return cls(**document)


@dataclass(frozen=True)
class Epoch:
    """A measured epoch of one process.

    Attributes:
        samples: samples trained in it, by this process (by all workers, where a coordinator counts).
        seconds: how long it took, held-out evaluation not included.
        loss: mean loss on the held-out samples after it.
    """

    samples: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class ProcessResult:
    """The measurements of a training process.

    Attributes:
        rank: its number.
        first_loss: mean loss on the held-out samples before training.
        epochs: the measured ones.
        versions: of Python, TensorFlow, Keras and the strategy's library.
    """

    rank: int
    first_loss: float
    epochs: tuple[Epoch, ...]
    versions: Mapping[str, str]

    def to_text(self) -> str:
        """The result as JSON."""
        return json.dumps(asdict(self))


def mark_line(name: str) -> str:
    """Returns the line that a process prints at the start (``begin``) and the end (``end``) of its measured time."""
    return f"{MARK}{name}"


def parse_mark(line: str) -> str | None:
    """The name in a mark's line, or None for any other line."""
    return line[len(MARK) :].strip() if line.startswith(MARK) else None
