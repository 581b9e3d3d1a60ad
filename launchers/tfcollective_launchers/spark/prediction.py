"""Predictions of a saved Keras model for the rows of a DataFrame, by ordinary tasks of Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tfcollective.launcher import ConfigError, arrays_of, columns, import_pyarrow

__all__ = ["predict"]


def predict(
    dataframe: Any,
    model: str | PathLike[str],
    features: str | Sequence[str],
    *,
    output: str = "prediction",
    output_type: str = "array<float>",
    batch_size: int = 1024,
) -> Any:
    """The DataFrame with one more column: what a saved Keras model says of each row. Lazy, as all of Spark's columns.

    Args:
        dataframe: the rows; its other columns stay as they are.
        model: a file that ``Model.save`` has written (``model.keras``), on the driver's machine; its contents go to the
            executors, which need TensorFlow.
        features: the input of the model: one column, of numbers or of arrays of numbers; or several of numbers, which
            become its last axis.
        output: the name of the new column.
        output_type: its type in Spark: ``array<float>``, or ``float`` where the model says one number of a row.
        batch_size: for how many rows the model is called at once, at most.

    Raises:
        ConfigError: there is no such file, no such column, or a column of this name already.
    """
    path = Path(model)
    if not path.is_file():
        raise ConfigError(f"model: {path} is not a file: save the model as one, with model.save('model.keras')")
    names = columns(features)
    unknown = [name for name in names if name not in dataframe.columns]
    if unknown or not names:
        raise ConfigError(f"features: {unknown or 'none given'}: the DataFrame has {', '.join(dataframe.columns)}")
    if output in dataframe.columns:
        raise ConfigError(f"output: the DataFrame has a column {output!r} already: choose another name")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"batch_size: expected 1 or more, got {batch_size!r}")
    import_pyarrow()
    from pyspark.sql.types import ArrayType, StructField, StructType, _parse_datatype_string

    kind = _parse_datatype_string(output_type)
    contents = dataframe.sparkSession.sparkContext.broadcast(path.read_bytes())
    suffix, scalar = path.suffix, not isinstance(kind, ArrayType)

    def predictions(batches: Iterable[Any]) -> Iterator[Any]:
        return predicted(batches, contents.value, suffix, names, output, scalar=scalar, size=batch_size)

    schema = StructType([*dataframe.schema.fields, StructField(output, kind)])
    return dataframe.mapInArrow(predictions, schema)


def predicted(
    batches: Iterable[Any],
    contents: bytes,
    suffix: str,
    features: Sequence[str],
    output: str,
    *,
    scalar: bool,
    size: int,
) -> Iterator[Any]:
    """The batches of Arrow with the model's answers as a further column; what a task does."""
    pa = import_pyarrow()
    model = _loaded(contents, suffix)
    for batch in batches:
        for begin in range(0, batch.num_rows, size):
            table = pa.Table.from_batches([batch.slice(begin, size)])
            found = np.asarray(model.predict_on_batch(_inputs(table, features)))
            yield from table.append_column(output, _column(found, scalar=scalar)).combine_chunks().to_batches()


def _loaded(contents: bytes, suffix: str) -> Any:
    import tensorflow as tf

    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(contents)
        file.flush()
        return tf.keras.models.load_model(file.name, compile=False)


def _inputs(table: Any, features: Sequence[str]) -> Any:
    arrays = arrays_of(table.select(list(features)))
    if len(features) == 1:
        (only,) = arrays.values()
        return only if only.ndim > 1 else only[:, np.newaxis]
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype == object:
            raise ConfigError(f"column {name!r}: of several columns, each has to be of numbers")
    return np.stack([arrays[name] for name in features], axis=-1).astype(np.float32)


def _column(found: np.ndarray[Any, Any], *, scalar: bool) -> Any:
    pa = import_pyarrow()
    if not scalar:
        return pa.array(list(found.reshape(len(found), -1).astype(np.float32)), pa.list_(pa.float32()))
    if found.size != len(found):
        raise ConfigError(
            f"output_type: the model says {found.size // max(1, len(found))} numbers of a row: array<float>"
        )
    return pa.array(found.reshape(-1).astype(np.float32), pa.float32())
