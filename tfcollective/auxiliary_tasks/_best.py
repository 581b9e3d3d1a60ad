"""Keeps a copy of the best checkpoint."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from tfcollective._base.errors import ConfigError
from tfcollective.auxiliary_tasks._checkpoints import Checkpoint
from tfcollective.files import Place, as_place, delete_tree, join, written_whole
from tfcollective.files._places import read_json, write_json

_FILE = "best.json"
MODES = ("min", "max")


@dataclass(frozen=True)
class Best:
    """The best checkpoint so far.

    Attributes:
        path: the copy, to be loaded as the original; a URL where the directory is one.
        value: of the metric.
        step: the training step, if it is known.
    """

    path: str
    value: float
    step: int | None


class BestModel:
    """Copies each checkpoint that is better than those before into `directory`.

    ``best.json`` there names it; the copy before it is deleted once that is written: there is always a whole one.

    Args:
        directory: where; made when needed.
        metric: what is compared.
        mode: "min" or "max": what is better.
    """

    def __init__(self, directory: Place, metric: str = "loss", mode: str = "min") -> None:
        if mode not in MODES:
            raise ConfigError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
        self._directory = as_place(directory, "directory")
        self._metric = metric
        self._mode = mode

    def best(self) -> Best | None:
        """The best one so far, also of an evaluator before a restart. None: there is none.

        Raises ConfigError when the file that names it holds something else.
        """
        place = join(self._directory, _FILE)
        try:
            return read_json(place, Best)
        except ConfigError as error:
            raise ConfigError(f"{place} does not name the best model; delete it to start over ({error})") from error

    def __call__(self, checkpoint: Checkpoint, metrics: Mapping[str, float], step: int | None) -> bool:
        """Copies `checkpoint` if it is the best so far; returns whether it is.

        Raises:
            ConfigError: the metric is not there.
        """
        value = self._value(metrics)
        before = self.best()
        if math.isnan(value) or (before is not None and not self._is_better(value, before.value)):
            return False
        folder, copy = self._copy(checkpoint)
        write_json(join(self._directory, _FILE), Best(copy, value, step))
        if before is not None and before.path.rpartition("/")[0] != folder:
            delete_tree(before.path.rpartition("/")[0])
        return True

    def _value(self, metrics: Mapping[str, float]) -> float:
        if self._metric not in metrics:
            raise ConfigError(
                f"best_metric {self._metric!r} does not exist: expected one of {', '.join(sorted(metrics))}"
            )
        return float(metrics[self._metric])

    def _is_better(self, value: float, than: float) -> bool:
        return value < than if self._mode == "min" else value > than

    def _copy(self, checkpoint: Checkpoint) -> tuple[str, str]:
        """A copy of the files, which are on this machine: its directory, and the path by which it is loaded."""
        target = join(self._directory, f"{checkpoint.name}.{checkpoint.modified_ns}")
        for file in checkpoint.files():
            with written_whole(join(target, file.name)) as copy:
                shutil.copyfile(file, copy)
        return str(target), str(join(target, checkpoint.name))
