"""A rank's share of a DataFrame of Spark, as a ``tf.data.Dataset``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfcollective._base.errors import ConfigError, InvalidArgumentError, StateError
from tfcollective._base.rows.arrays import arrays_of, dtypes_of, rebatched, table_of
from tfcollective._base.rows.stream import RowReader
from tfcollective._base.settings import Settings, environ_snapshot
from tfcollective._control.identity import discover


def dataset(batch_size: int, *, label: str | None = None) -> Any:
    """The rows that Spark has for this rank, in batches, as they come: for a job that was started with
    ``tfcollective.spark.run(..., data=tfcollective.spark.feed(dataframe))``.

    It can be read once, by one reader; ``feed(..., epochs=...)`` has rows come several times. Ranks may get different
    numbers of batches: see ``tfcollective.tensorflow.join``.

    Args:
        batch_size: rows in a batch; the last one may have fewer.
        label: the column to learn; None: there is none.

    Returns:
        A dataset whose elements have a tensor for each column, [rows] or, of arrays, [rows, values]; texts are of the
        dtype ``tf.string``. One column is a tensor, several are a dict of tensors by name; with `label`, a pair of the
        other columns and that one.

    Raises:
        ConfigError: this rank has no rows of Spark.
        InvalidArgumentError: there is no such column, or a batch without rows is asked for.
        StateError: they have been asked for before.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InvalidArgumentError(f"batch_size: expected 1 or more, got {batch_size!r}")
    share = _Share.of_this_rank()
    specs = {name: _spec(dtype, axes) for name, (dtype, axes) in dtypes_of(share.schema).items()}
    if label is not None and label not in specs:
        raise InvalidArgumentError(f"label: the rows have the columns {', '.join(specs)}, and not {label!r}")
    if label is not None and len(specs) == 1:
        raise InvalidArgumentError(f"label: the rows have {label!r} alone, and nothing to learn it from")

    def batches() -> Iterator[Any]:
        for table in rebatched(share.tables(), batch_size):
            yield _element(arrays_of(table), label)

    return tf.data.Dataset.from_generator(batches, output_signature=_element(specs, label))


def _spec(dtype: Any, axes: int) -> Any:
    return tf.TensorSpec([None] * axes, tf.string if dtype.hasobject else tf.as_dtype(dtype))


def _element(by_name: dict[str, Any], label: str | None) -> Any:
    others = {name: one for name, one in by_name.items() if name != label}
    features = next(iter(others.values())) if len(others) == 1 else others
    return features if label is None else (features, by_name[label])


class _Share:
    """The rows of this process: the connection can be made once."""

    _taken = threading.Lock()

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader
        self._begun = threading.Lock()
        first = reader.next()
        self.schema = table_of(first or b"").schema

    @classmethod
    def of_this_rank(cls) -> _Share:
        settings = Settings.load()
        key = discover(settings, environ_snapshot()).key
        if settings.row_source is None or key is None:
            raise ConfigError(
                "this rank gets no rows of Spark: start the job with tfcollective.spark.run(..., "
                "data=tfcollective.spark.feed(dataframe))"
            )
        if not cls._taken.acquire(blocking=False):
            raise StateError("the rows of this rank have been asked for before: they come once")
        return cls(RowReader(str(settings.row_source), key))

    def tables(self) -> Iterator[Any]:
        """Yields the tables that come, to the end."""
        if not self._begun.acquire(blocking=False):
            raise StateError("the rows have been read: have them come several times with feed(..., epochs=...)")
        with self._reader:
            while (piece := self._reader.next()) is not None:
                yield table_of(piece)
