"""Predictions of all ranks: each keeps the rows of its batches, and they are put in the order of the data at the end.

What is more than a bound lies in nameless temporary files, which nothing has to remove: their room is free as soon as
no array refers to them, also after a rank was killed.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective.keras._global_batch import steps_per_execution
from tfcollective.keras._parallel.rounds import rounds
from tfcollective.tensorflow._objects import allgather_object


@dataclass(frozen=True)
class Wanted:
    """What a prediction by all ranks returns.

    Attributes:
        gather: "all": all rows on all ranks; "rank0": on rank 0 alone, the others get None; "none": each rank gets the
            rows of its own batches.
        memory: the most bytes of predictions in memory; None: all are.
    """

    gather: Literal["all", "rank0", "none"] = "all"
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.gather not in ("all", "rank0", "none"):
            raise InvalidArgumentError(f"gather: expected 'all', 'rank0' or 'none', got {self.gather!r}")
        if self.memory is not None and self.memory < 0:
            raise InvalidArgumentError(f"memory: expected 0 bytes or more, got {self.memory}")

    @property
    def is_mine(self) -> bool:
        """True if this rank gets what is gathered."""
        return self.gather == "all" or runtime.rank() == 0


class _Asked(threading.local):
    wanted = Wanted()


_asked = _Asked()


@contextmanager
def wanting(wanted: Wanted) -> Iterator[None]:
    """Within it, the next prediction of this thread returns that."""
    _asked.wanted = wanted
    try:
        yield
    finally:
        take_wanted()


def take_wanted() -> Wanted:
    """What the prediction that begins returns; those that callbacks make meanwhile are as in Keras."""
    wanted, _asked.wanted = _asked.wanted, Wanted()
    return wanted


@dataclass(frozen=True)
class _Kind:
    """Of the rows of one output."""

    dtype: Any
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of a row; strings count as their references."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def empty(self, rows: int, memory: int | None) -> Any:
        """An array for so many rows: in a file if it has more bytes than `memory`. Strings are always in memory."""
        if memory is None or rows * self.bytes <= memory or self.dtype.hasobject:
            return np.empty((rows, *self.shape), self.dtype)
        with tempfile.TemporaryFile() as file:  # the array keeps what is in it
            os.posix_fallocate(file.fileno(), 0, rows * self.bytes)  # a full disk is an error here, and none later
            return np.memmap(file, self.dtype, "w+", shape=(rows, *self.shape))


class _Rows:
    """The rows of one output that this rank has predicted."""

    def __init__(self, first: Any) -> None:
        self.kind = _Kind(first.dtype, first.shape[1:])
        self._memory: list[Any] = []
        self._file: Any = None
        self._total = 0

    def add(self, rows: Any, *, to_file: bool) -> None:
        self._total += len(rows)
        self._memory.append(rows)
        if to_file and rows.size and not self.kind.dtype.hasobject:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115  # open as long as this object
            for one in self._memory:
                self._file.write(one.tobytes())
            self._memory = []

    def array(self) -> Any:
        """All rows; none are added afterwards."""
        if self._file is None:
            self._memory = [np.concatenate(self._memory)]
        else:
            with self._file as file:
                file.flush()
                self._memory = [np.memmap(file, self.kind.dtype, "r+", shape=(self._total, *self.kind.shape))]
            self._file = None
        return self._memory[0]


@dataclass
class _Summary:
    """What a rank has predicted.

    Attributes:
        structure: of the outputs, with anything in it; None without batches.
        kinds: of the outputs; empty without batches.
        rows: for each batch, of each output.
        refused: what cannot be put together; empty if all can.
    """

    structure: Any = None
    kinds: list[_Kind] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)
    refused: str = ""


class Predictions:
    """The predictions of this rank, which ``Model.predict`` gives batch by batch.

    Attributes:
        outputs: of the last batch.

    Args:
        wanted: of all ranks' rows.
        takes: says if a batch at this place is this rank's, where it predicts those of all; None: all are its own.
    """

    def __init__(self, wanted: Wanted, takes: Callable[[int], bool] | None = None) -> None:
        self._wanted, self._takes = wanted, takes
        self._place = 0
        self.outputs: Any = None
        self._function: Any = None  # the model's own, while another stands for it
        self._summary = _Summary()
        self._rows: list[_Rows] = []
        self._bytes = 0

    @contextmanager
    def of(self, model: Any, callbacks: Sequence[Any]) -> Iterator[list[Any]]:
        """Gives the callbacks for a ``predict`` of `model` whose outputs come to this object, one batch at a time.

        Keras gets a stand-in for each, as it would keep them. That is so for the calls of the run itself alone, not for
        predictions that `callbacks` make meanwhile.
        """
        steps = steps_per_execution(model)
        if steps != 1:
            model.steps_per_execution, model.predict_function = 1, None
        try:
            yield [_Show(self), *callbacks, _Take(self)]
        finally:
            self._restore_function(model)  # Keras has asked for a batch, and there was none
            if steps != 1:
                model.steps_per_execution, model.predict_function = steps, None

    def take_next(self, model: Any) -> None:
        """Takes the outputs of the next call of the model's prediction function."""
        self._function = model.predict_function

        def predict_function(data: Any) -> Any:
            self._restore_function(model)
            self.outputs = model.predict_function(data)
            self._add(self.outputs)
            return tf.zeros([1])

        model.predict_function = predict_function

    def _restore_function(self, model: Any) -> None:
        if self._function is not None:
            model.predict_function, self._function = self._function, None

    def gathered(self) -> Any:
        """What was wanted, which all ranks call for; None where no rank has a batch.

        Raises:
            UnsupportedError: on all ranks: predictions that cannot be put together.
        """
        everyones = allgather_object(self._summary, name="sizes of predictions")
        having = [one for one in everyones if one.rows]
        refused = next((one.refused for one in everyones if one.refused), "")
        if refused or any(one.kinds != having[0].kinds for one in having):
            raise UnsupportedError(f"predict: {refused or _UNEQUAL}")
        if not having:
            return None
        first = having[0]
        if self._wanted.gather == "none":
            mine = [one.array() for one in self._rows] or [kind.empty(0, None) for kind in first.kinds]
        else:
            mine = self._put_together(everyones, first.kinds)
        structure = self._summary.structure if self._summary.rows else first.structure
        return tf.nest.pack_sequence_as(structure, mine) if mine else None

    def _add(self, outputs: Any) -> None:
        place, self._place = self._place, self._place + 1
        if self._summary.refused or not (self._takes is None or self._takes(place)):
            return
        leaves = tf.nest.flatten(outputs, expand_composites=False)
        if any(isinstance(one, tf.RaggedTensor | tf.SparseTensor) for one in leaves):
            self._summary.refused = "ragged and sparse predictions of several ranks are not put together"
            return
        arrays = [np.atleast_1d(np.asarray(one)) for one in leaves]
        if not self._rows:
            self._rows = [_Rows(one) for one in arrays]
            self._summary.structure = tf.nest.map_structure(lambda _: 0, outputs)
            self._summary.kinds = [one.kind for one in self._rows]
        elif [_Kind(one.dtype, one.shape[1:]) for one in arrays] != self._summary.kinds:
            self._summary.refused = _UNEQUAL
            return
        self._bytes += sum(one.nbytes for one in arrays)
        to_file = self._wanted.memory is not None and self._bytes > self._wanted.memory
        for rows, array in zip(self._rows, arrays, strict=True):
            rows.add(array, to_file=to_file)
        self._summary.rows.append([len(one) for one in arrays])

    def _put_together(self, everyones: Sequence[_Summary], kinds: Sequence[_Kind]) -> list[Any]:
        """All rows in the order of the data, of whose batches ranks have taken turns."""
        totals = [sum(rows[leaf] for one in everyones for rows in one.rows) for leaf in range(len(kinds))]
        wanted = self._wanted
        fits = wanted.memory is None or _bytes_of(totals, kinds) <= wanted.memory
        places = zip(totals, kinds, strict=True)
        whole = [kind.empty(total, None if fits else 0) for total, kind in places] if wanted.is_mine else []
        own, sent, filled = [rows.array() for rows in self._rows], [0] * len(self._rows), [0] * len(whole)
        sizes = [[_bytes_of(rows, kinds) for rows in one.rows] for one in everyones]
        for begin, end in rounds(sizes):
            batches = self._summary.rows[begin:end]
            ends = [at + sum(rows[leaf] for rows in batches) for leaf, at in enumerate(sent)]
            part = [np.asarray(one[at:until]) for one, at, until in zip(own, sent, ends, strict=True)]
            sent = ends
            theirs = allgather_object(part, name="predictions")
            rows = [one.rows[begin:end] for one in everyones]
            for leaf, target in enumerate(whole):
                filled[leaf] = _fill(target, filled[leaf], leaf, rows, theirs)
        return whole


class _Take(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """The last callback, which is called right before the model predicts a batch."""

    def __init__(self, predictions: Predictions) -> None:
        super().__init__()
        self._predictions = predictions

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Has its outputs taken."""
        self._predictions.take_next(self.model)


class _Show(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """The first callback, which gives the others the outputs of a batch in place of the stand-in."""

    def __init__(self, predictions: Predictions) -> None:
        super().__init__()
        self._predictions = predictions

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Replaces it."""
        if logs is not None:
            logs["outputs"] = self._predictions.outputs


_UNEQUAL = "the shapes or types of predictions differ from batch to batch"


def _bytes_of(rows: Sequence[int], kinds: Sequence[_Kind]) -> int:
    return sum(count * kind.bytes for count, kind in zip(rows, kinds, strict=True))


def _fill(target: Any, filled: int, leaf: int, rows: Sequence[list[list[int]]], theirs: Sequence[list[Any]]) -> int:
    """Writes an output's rows of one round behind those that are filled; returns how many are then.

    Args:
        rows: of each rank, for each of its batches, of each output.
        theirs: of each rank, its outputs.
    """
    taken = [0] * len(rows)
    for turn in range(max(map(len, rows))):
        for rank, batches in enumerate(rows):
            if turn < len(batches):
                count = batches[turn][leaf]
                target[filled : filled + count] = theirs[rank][leaf][taken[rank] : taken[rank] + count]
                taken[rank] += count
                filled += count
    return filled
