"""The checkpoints in a directory, in the order in which they were made."""

from __future__ import annotations

import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tfcollective.files import FileFacts, Place, Workspace, is_url, list_files

TENSORFLOW, KERAS, WEIGHTS = "tensorflow", "keras", "weights"
_ENDINGS = {".keras": KERAS, ".weights.h5": WEIGHTS}
_INDEX = ".index"
_SHARD = re.compile(r"(?P<prefix>.+)\.data-\d{5}-of-(?P<count>\d{5})")
_DECIMAL = re.compile(r"\d+\.\d+")
_WHOLE = re.compile(r"\d+")


class NotWholeError(Exception):
    """A checkpoint's file ends before its end: its writer was killed, or stands still."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        path: the file (it may be a URL); of a TensorFlow checkpoint the prefix, as ``tf.train.Checkpoint.restore``
            takes it.
        kind: "tensorflow", "keras" (a ``.keras`` file) or "weights" (``.weights.h5``).
        step: the number in its name: a training step, or an epoch; None if there is none.
        modified_ns: when its newest file was changed, in ns since 1970.
        size: of all its files together, in bytes.
    """

    path: str
    kind: str
    step: int | None
    modified_ns: int
    size: int

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def identity(self) -> str:
        """A text that differs for each checkpoint: a file that is written again under the same name is a new one."""
        return f"{self.name} {self.modified_ns} {self.size}"

    def files(self) -> list[Path]:
        """The files that it consists of, as they are now, of one on this machine."""
        path = Path(self.path)
        if self.kind != TENSORFLOW:
            return [path]
        return sorted(file for file in path.parent.iterdir() if file.name.startswith(f"{path.name}."))


def find_checkpoints(directory: Place) -> tuple[Checkpoint, ...]:
    """The complete checkpoints in a directory (not below it), oldest first; none if it does not exist (yet)."""
    return checkpoints_of(str(directory), list_files(directory))


@contextmanager
def fetched(checkpoint: Checkpoint) -> Iterator[Checkpoint]:
    """The checkpoint with a path on this machine, as long as the block runs. Raises FileNotFoundError or OSError."""
    if not is_url(checkpoint.path):
        yield checkpoint
        return
    directory, _, name = checkpoint.path.rpartition("/")
    names = list_files(directory) if checkpoint.kind == TENSORFLOW else ()
    with Workspace(directory) as here:
        here.fetch([file for file in names if file.startswith(f"{name}.")] or [name])
        yield replace(checkpoint, path=f"{here.directory}/{name}")


def check_whole(checkpoint: Checkpoint) -> None:
    """Raises NotWholeError for a file, on this machine, that Keras has not written to the end. TensorFlow's own
    checkpoints get their names when they are whole."""
    if checkpoint.kind == TENSORFLOW or (checkpoint.kind == KERAS and zipfile.is_zipfile(checkpoint.path)):
        return
    import h5py

    try:
        h5py.File(checkpoint.path, "r").close()  # such were ``.keras`` files, too
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotWholeError(str(error)) from error


def checkpoints_of(directory: str, files: Mapping[str, FileFacts]) -> tuple[Checkpoint, ...]:
    """Finds what :func:`find_checkpoints` does, but in a listing: only names decide.

    Ordered by the numbers in the names; by time where a name has none, or two have the same.
    """
    found = [*_single_files(directory, files), *_tensorflow_checkpoints(directory, files)]
    numbers = [checkpoint.step for checkpoint in found]
    if None in numbers or len(set(numbers)) != len(numbers):
        return tuple(sorted(found, key=lambda one: (one.modified_ns, _natural(one.name))))
    return tuple(sorted(found, key=lambda one: one.step or 0))


def number_in(name: str) -> int | None:
    """The last whole number in a name, for example 12 in "resnet50-12-0.87"; None if there is none."""
    numbers = _WHOLE.findall(_DECIMAL.sub(" ", name))
    return int(numbers[-1]) if numbers else None


def _single_files(directory: str, files: Mapping[str, FileFacts]) -> Iterable[Checkpoint]:
    for name, facts in files.items():
        for ending, kind in _ENDINGS.items():
            if name.endswith(ending):
                stem = name.removesuffix(ending)
                yield Checkpoint(f"{directory}/{name}", kind, number_in(stem), facts.modified_ns, facts.size)


def _tensorflow_checkpoints(directory: str, files: Mapping[str, FileFacts]) -> Iterable[Checkpoint]:
    """Yields the checkpoints whose index and data files all exist."""
    shards: defaultdict[str, list[FileFacts]] = defaultdict(list)
    wanted: dict[str, int] = {}
    for name, facts in files.items():
        match = _SHARD.fullmatch(name)
        if match:
            shards[match["prefix"]].append(facts)
            wanted[match["prefix"]] = int(match["count"])
    for prefix, parts in shards.items():
        index = files.get(prefix + _INDEX)
        if index is None or len(parts) != wanted[prefix]:
            continue
        newest = max(part.modified_ns for part in (index, *parts))
        size = sum(part.size for part in (index, *parts))
        yield Checkpoint(f"{directory}/{prefix}", TENSORFLOW, number_in(prefix), newest, size)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts "a10" after "a9"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
