"""The validated options of ``bench training``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcollective._base.errors import ConfigError
from tfcollective_bench.options import LOOPBACK, check_above_zero, check_links
from tfcollective_bench.training.models import MODELS

__all__ = ["LOOPBACK", "VIEWS", "TrainingOptions"]

VIEWS = ("processes", "cores")


@dataclass(frozen=True)
class TrainingOptions:
    """The options of a run.

    Attributes:
        processes: numbers of training processes to measure.
        models: names.
        runners: names; empty: all.
        links: ``loopback``, or a rate: then every process has a host of its own, a network namespace.
        views: how a parameter server's processes count: beside the training processes (``processes``), or as some
            of them (``cores``).
        rounds: turns of every job.
        steps: measured steps of a process in a turn; 0: the model's own number.
        epochs: into how many epochs they are parted; the loss is taken after each.
        servers: most parameter servers to try; 0: as many as training processes.
        steps_at_a_time: how many steps a parameter server's coordinator hands out at once; each is tried.
        deadline_s: a job is ended when its turn takes longer.
        baselines: where ``tools/baselines.sh`` has put the others; empty: the usual places.
        keras3_python: the interpreter of an environment with TensorFlow 2.16 or newer; empty: looked for.
        keras2_python: likewise, with TensorFlow 2.15.
        horovod_python: likewise, with Horovod.
        timeline: whether a further short job of tfcollective records steps for the page.
        budget_s: no turn begins when so many seconds have gone; 0: all turns are taken.
    """

    processes: tuple[int, ...] = (2,)
    models: tuple[str, ...] = tuple(MODELS)
    runners: tuple[str, ...] = ()
    links: tuple[str, ...] = (LOOPBACK,)
    views: tuple[str, ...] = VIEWS
    rounds: int = 3
    steps: int = 0
    epochs: int = 4
    servers: int = 0
    steps_at_a_time: tuple[int, ...] = (1, 10)
    deadline_s: float = 300.0
    baselines: str = ""
    keras3_python: str = ""
    keras2_python: str = ""
    horovod_python: str = ""
    timeline: bool = False
    budget_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.processes or min(self.processes) < 1:
            raise ConfigError("-np: at least one number of processes, each 1 or more")
        check_above_zero(rounds=self.rounds, epochs=self.epochs, deadline=self.deadline_s)
        if self.steps < 0 or 0 < self.steps < self.epochs:
            raise ConfigError(f"--steps: expected {self.epochs} or more, one for each epoch, got {self.steps}")
        if self.servers < 0:
            raise ConfigError(f"--servers: expected 0 or more, got {self.servers}")
        if not self.steps_at_a_time or min(self.steps_at_a_time) < 1:
            raise ConfigError("steps at a time: at least one number, each 1 or more")
        _check("--models", self.models, tuple(MODELS))
        _check("--view", self.views, VIEWS)
        check_links(self.links)
        for name in ("keras3_python", "keras2_python", "horovod_python"):
            python = getattr(self, name)
            if python and not Path(python).exists():
                raise ConfigError(f"--{name.replace('_', '-')}: {python} does not exist")

    def steps_per_epoch(self, model: str) -> int:
        """The steps of one process per epoch; at least 1."""
        return max(1, (self.steps or MODELS[model].steps) // self.epochs)


def _check(name: str, values: Sequence[str], known: Sequence[str]) -> None:
    if not values:
        raise ConfigError(f"{name}: at least one of {', '.join(known)}")
    for value in values:
        if value not in known:
            raise ConfigError(f"{name}: {value!r} is not one of {', '.join(known)}")
