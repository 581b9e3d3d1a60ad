"""The file that holds a backup of a training run: where it was, and the values of all variables.

A zip archive of numpy arrays (``numpy.savez``): a header in JSON, and each variable's bytes, so that types which numpy
does not know survive. It is replaced at once: there is either the old backup or the new one.
"""

from __future__ import annotations

import errno
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

from tfcollective._base.errors import InvalidArgumentError
from tfcollective.files import Place, local_copy, written_whole

_FORMAT = 2

# Type and shape of each variable, for example ("float32", (3, 4)).
Layout = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Position:
    """The next step of a training run.

    Attributes:
        epoch: the epoch, from 0.
        batch: how many batches of it are done.
        calls: in how many calls of the training function they were done (less with ``steps_per_execution``).
    """

    epoch: int
    batch: int = 0
    calls: int = 0


@dataclass(frozen=True)
class Backup:
    """The data from which a run resumes.

    Attributes:
        position: where it was.
        shared: the values (numpy arrays) that all ranks have.
        own: the values that are each rank's own, by rank.
        built: the weights, by their places, that optimizers were built for which only a training step builds; by the
            optimizer's place.
        accumulated: how many of the last of each rank's own values are gradients towards an optimizer's next update;
            by the optimizer's place.
        places: of each rank in its data: states of its iterator, or reasons why there are none.
        logs: of the last batch that is done.
    """

    position: Position
    shared: Sequence[Any]
    own: Sequence[Sequence[Any]]
    built: Mapping[str, Sequence[int]] = field(default_factory=dict)
    accumulated: Mapping[str, int] = field(default_factory=dict)
    places: Sequence[Sequence[bytes | str]] = ()
    logs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of ranks that wrote it."""
        return len(self.own)


# Errors of numpy, zipfile and json for a malformed file.
_DAMAGED = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, NotImplementedError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


def layout_of(values: Sequence[Any]) -> Layout:
    """Types and shapes of numpy arrays or of variables."""
    return tuple((_dtype_name(value.dtype), tuple(int(length) for length in value.shape)) for value in values)


def write_backup(path: Place, backup: Backup) -> None:
    """Puts `backup` at `path`, which it replaces. Raises OSError; then what was at `path` is still there."""
    import numpy as np

    states = [np.frombuffer(one, np.uint8) for place in backup.places for one in place if isinstance(one, bytes)]
    arrays = [*backup.shared, *(value for values in backup.own for value in values), *states]
    header = {
        "format": _FORMAT,
        "position": asdict(backup.position),
        "shared": layout_of(backup.shared),
        "own": [layout_of(values) for values in backup.own],
        "built": {place: list(indices) for place, indices in backup.built.items()},
        "accumulated": dict(backup.accumulated),
        "places": [[len(one) if isinstance(one, bytes) else one for one in place] for place in backup.places],
        "logs": dict(backup.logs),
    }
    data: dict[str, Any] = {
        str(index): np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8) for index, array in enumerate(arrays)
    }
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **data)
        file.flush()
        os.fsync(file.fileno())


def read_backup(path: Place) -> Backup | None:
    """The backup at `path`; None if there is none.

    Raises:
        InvalidArgumentError: there is something else.
        OSError: it cannot be read now, which says nothing of what it holds.
    """
    try:
        with local_copy(path) as here, here.open("rb") as file:
            return _read(path, file)
    except FileNotFoundError:
        return None


def _read(path: Place, file: BinaryIO) -> Backup:
    import numpy as np

    try:
        with np.load(file, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            if header["format"] != _FORMAT:
                raise ValueError(f"its format is {header['format']}, not {_FORMAT}")
            return _parse(header, lambda index: archive[str(index)])
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # an error of the disk; the exceptions come from positions that the file itself gives
        raise InvalidArgumentError(
            f"the backup {path} cannot be used: {error}. Delete it to start from the beginning"
        ) from error


def _parse(header: Any, bytes_of: Any) -> Backup:
    index = 0

    def values(layout: Any) -> list[Any]:
        nonlocal index
        found = []
        for dtype, shape in layout:
            found.append(bytes_of(index).view(_numpy_dtype(dtype)).reshape(shape))
            index += 1
        return found

    position = Position(**header["position"])
    if min(position.epoch, position.batch, position.calls) < 0 or (position.batch and not position.calls):
        raise ValueError(f"it says that {position} was reached")
    if not header["own"]:
        raise ValueError("it is of no rank")
    built = {str(place): [int(index) for index in indices] for place, indices in header.get("built", {}).items()}
    accumulated = {str(place): int(count) for place, count in header.get("accumulated", {}).items()}
    if min(accumulated.values(), default=1) < 1 or sum(accumulated.values()) > min(map(len, header["own"])):
        raise ValueError(f"it says that {accumulated} gradients are accumulated")
    shared, own = values(header["shared"]), [values(one) for one in header["own"]]
    places = [
        [one if isinstance(one, str) else values([("uint8", (one,))])[0].tobytes() for one in place]
        for place in header["places"]
    ]
    if places and len(places) != len(own):
        raise ValueError(f"it has {len(own)} ranks, and data of {len(places)}")
    return Backup(position, shared, own, built, accumulated, places, dict(header["logs"]))


def _dtype_name(dtype: Any) -> str:
    return str(getattr(dtype, "name", dtype))


def _numpy_dtype(name: str) -> Any:
    import tensorflow as tf

    return tf.as_dtype(name).as_numpy_dtype
