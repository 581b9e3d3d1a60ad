"""The flag that tells an evaluator that training has ended: a file in the model's directory, written by rank 0."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tfcollective import _runtime as runtime
from tfcollective._base.errors import ConfigError
from tfcollective.files import Place, as_place, delete, join
from tfcollective.files._places import read_json, write_json

_FILE = "training_ended.json"


@dataclass(frozen=True)
class _Flag:
    job: str | None


@contextlib.contextmanager
def announced_training(model_dir: Place) -> Iterator[None]:
    """Announces that training is under way; when it is left without an exception, that no checkpoint will follow.

    All ranks may use it, rank 0 writes. ``init()`` has to come before.
    """
    path = join(as_place(model_dir, "model_dir"), _FILE)
    chief = runtime.rank() == 0
    if chief:
        delete(path)
    yield
    if chief:
        write_json(path, _Flag(runtime.settings().job_id))


def training_ended(model_dir: Place, job_id: str | None = None) -> bool:
    """True if training in this directory has ended.

    Args:
        model_dir: the directory.
        job_id: only if it was this job's; that of an earlier job does not count, as this one's may not have begun.
    """
    try:
        flag = read_json(join(as_place(model_dir, "model_dir"), _FILE), _Flag)
    except ConfigError:
        return False
    return flag is not None and job_id in (None, flag.job)
