"""Columns of Arrow as arrays of numpy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tfcollective._base.errors import ConfigError

if TYPE_CHECKING:  # launchers import this module, and most jobs read no rows
    import numpy as np


def import_pyarrow() -> Any:
    """The module; ConfigError that names the extra when it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.types
    except ImportError as error:
        raise ConfigError(f"pyarrow is not installed ({error}): pip install 'tfcollective[spark]'") from error
    return pyarrow


def table_of(piece: bytes) -> Any:
    """The rows of a stream of Arrow, as a table."""
    pa = import_pyarrow()
    with pa.ipc.open_stream(pa.py_buffer(piece)) as reader:
        return reader.read_all()


def check_schema(schema: Any) -> None:
    """Raises ConfigError that names the first column which cannot become an array."""
    for field in schema:
        _dtype_of(field.name, field.type)


def dtypes_of(schema: Any) -> dict[str, tuple[Any, int]]:
    """Returns by column what :func:`arrays_of` makes of it: the dtype, ``object`` for texts, and the number of axes."""
    return {field.name: _dtype_of(field.name, field.type) for field in schema}


def _dtype_of(name: str, kind: Any) -> tuple[Any, int]:
    import numpy as np

    types = import_pyarrow().types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        dtype, axes = _dtype_of(name, kind.value_type)
        return dtype, axes + 1
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return np.dtype(object), 1
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype()), 1
    raise not_an_array(name, str(kind))


def not_an_array(name: str, kind: str) -> ConfigError:
    """Returns the error to raise for a column of this type."""
    return ConfigError(
        f"column {name!r}: {kind} cannot become an array: cast it to a number, a text or an array of numbers first "
        "(pyspark.ml.functions.vector_to_array for vectors of ML)"
    )


def arrays_of(table: Any) -> dict[str, np.ndarray[Any, Any]]:
    """An array for each column, its first axis the rows; lists of equal lengths become further axes, texts bytes.

    Raises ConfigError for nulls, and for lists of different lengths.
    """
    return {name: _array_of(name, table.column(name)) for name in table.column_names}


def _array_of(name: str, column: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    if column.null_count:
        raise ConfigError(f"column {name!r} has nulls: fill or drop them first")
    dtype, axes = _dtype_of(name, column.type)
    if axes == 1 and dtype.hasobject:
        texts = [one.encode() if isinstance(one, str) else one for one in column.to_pylist()]
        return np.array(texts, dtype)
    if axes == 1:
        return np.asarray(column.to_numpy(), dtype)
    return _array_of_lists(name, column, dtype)


def _array_of_lists(name: str, column: Any, dtype: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    rows = column.combine_chunks()
    rows = rows.combine_chunks() if hasattr(rows, "chunks") else rows
    if not len(rows):
        return np.empty((0, 0), dtype)
    lengths = np.unique(import_pyarrow().compute.list_value_length(rows).to_numpy(zero_copy_only=False))
    if len(lengths) != 1:
        raise ConfigError(f"column {name!r}: lists of {lengths[0]} to {lengths[-1]} values cannot be one array")
    inner = _array_of(name, import_pyarrow().chunked_array([rows.flatten()]))
    return inner.reshape(len(rows), int(lengths[0]), *inner.shape[1:])


def rebatched(tables: Iterable[Any], size: int) -> Iterator[Any]:
    """The same rows in tables of ``size`` rows each; the last one may have fewer."""
    pa = import_pyarrow()
    waiting: list[Any] = []
    count = 0
    for table in tables:
        waiting, count = [*waiting, table], count + table.num_rows
        if count < size:
            continue
        rows = pa.concat_tables(waiting)
        for begin in range(0, count - size + 1, size):
            yield rows.slice(begin, size)
        left = count % size
        waiting, count = [rows.slice(count - left)] if left else [], left
    if count:
        yield pa.concat_tables(waiting)


def columns(names: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the column names as a tuple: one name, or several."""
    return (names,) if isinstance(names, str) else tuple(names)
