"""The rows of a DataFrame, given to the ranks of a job: the tasks that hold the agents read them, each a share, and
send them to the rank beside them. Nothing is written to a disk but what Spark itself spills while it deals them out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from tfcollective.launcher import (
    ConfigError,
    NodeSettings,
    RowWriter,
    UnsupportedError,
    check_schema,
    columns,
    decode,
    import_pyarrow,
    not_an_array,
    variable,
)
from tfcollective_launchers.spark.task import Feed, Part, run_agent, task_environment

__all__ = ["Source", "feed"]

_CONNECT = "pyspark.sql.connect"
_ENDS = "task int, code int"


@dataclass(frozen=True)
class Source:
    """The result of :func:`feed`, for ``run(..., data=...)``.

    Attributes:
        frame: the DataFrame, with the columns that ranks get.
        epochs: how often they get its rows.
    """

    frame: Any
    epochs: int = 1

    @property
    def session(self) -> Any:
        """The SparkSession that has it."""
        return self.frame.sparkSession

    def run_tasks(self, part: Part) -> dict[int, int]:
        """Gives each task its rows; see :func:`~tfcollective_launchers.spark.provider.run_tasks`."""
        part = replace(part, schema=arrow_schema(self.frame).serialize().to_pybytes())
        rows = reduce(lambda some, more: some.union(more), [self.frame] * self.epochs)

        def hold(batches: Iterable[Any]) -> Iterator[Any]:
            return hold_agent_with_rows(part, batches)

        shares = rows.repartition(len(part.lines))
        return {row.task: row.code for row in shares.mapInArrow(hold, _ENDS, barrier=True).collect()}


def feed(dataframe: Any, *, columns: str | Sequence[str] | None = None, epochs: int = 1) -> Source:
    """The rows of a DataFrame as the data of a job: ``run(train, num_proc=4, data=feed(dataframe))``.

    Spark deals the rows out, about as many to each rank; a rank reads its share with
    ``tfcollective.spark.dataset(batch_size)``, as they come. The shares may differ by a few rows, so that ranks make
    different numbers of steps: end a training loop with ``tfcollective.tensorflow.join()``.

    Args:
        dataframe: a DataFrame of a classic session. Its columns are numbers, texts, bytes, or arrays of them that have
            the same length in all rows; none of the values is null.
        columns: those that the ranks get; None: all.
        epochs: how often each row is dealt out. The rows of an epoch come before those of the next one only roughly.

    Raises:
        ConfigError: this is not a DataFrame, or a column cannot become an array.
        UnsupportedError: it is one of Spark Connect.
    """
    if type(dataframe).__module__.startswith(_CONNECT):
        raise UnsupportedError("Spark Connect: its DataFrames cannot be read by tasks that start together")
    if not hasattr(dataframe, "mapInArrow"):
        raise ConfigError(f"dataframe: expected a DataFrame of Spark, got {dataframe!r}")
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ConfigError(f"epochs: expected 1 or more, got {epochs!r}")
    frame = dataframe if columns is None else dataframe.select(*_known(dataframe, columns))
    check_schema(arrow_schema(frame))
    return Source(frame, epochs)


def _known(dataframe: Any, names: str | Sequence[str]) -> tuple[str, ...]:
    wanted = columns(names)
    unknown = [name for name in wanted if name not in dataframe.columns]
    if unknown or not wanted:
        raise ConfigError(f"columns: {unknown or 'none given'}: the DataFrame has {', '.join(dataframe.columns)}")
    return wanted


def arrow_schema(frame: Any) -> Any:
    """The columns as Arrow has them. Raises ConfigError when pyarrow is missing, or has no such type."""
    pa = import_pyarrow()
    return pa.schema([(field.name, _arrow_type(field)) for field in frame.schema])


def _arrow_type(field: Any) -> Any:
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        return to_arrow_type(field.dataType)
    except Exception as error:  # of several kinds; a time without a zone is refused without a word
        raise not_an_array(field.name, field.dataType.simpleString()) from error


def hold_agent_with_rows(part: Part, batches: Iterable[Any]) -> Iterator[Any]:
    """Does what :func:`~tfcollective_launchers.spark.task.hold_agent` does, for a task that has rows for its rank, in
    Arrow batches; also yields the numbers as a batch."""
    from pyspark import BarrierTaskContext

    me = BarrierTaskContext.get()
    line = part.lines[me.partitionId()]
    key = bytes.fromhex(decode(line.encode(), NodeSettings, "the node's settings").key)
    with RowWriter(key) as writer:
        environ = {**task_environment(me), variable("row_source"): writer.address}
        feed = Feed(lambda: send_rows(writer, part.schema, batches), writer.close)
        code = run_agent(part, line, environ, feed)
    pa = import_pyarrow()
    numbers = {name: pa.array([number], pa.int32()) for name, number in (("task", me.partitionId()), ("code", code))}
    yield pa.RecordBatch.from_arrays(list(numbers.values()), list(numbers))


def send_rows(writer: RowWriter, schema: bytes, batches: Iterable[Any]) -> None:
    """Sends the columns, then all rows, to the rank that asks for them. Raises OSError when it has ended, RuntimeError
    when Spark's end of the rows comes too early."""
    pa = import_pyarrow()
    writer.accept()
    writer.send(_piece(pa.ipc.read_schema(pa.py_buffer(schema)), ()))
    for batch in read_from_spark(batches):
        for some in _small(batch):
            writer.send(_piece(batch.schema, (some,)))
    writer.finish()


def read_from_spark(batches: Iterable[Any]) -> Iterator[Any]:
    """The same batches. Raises RuntimeError when they break off.

    Arrow may raise an OSError where a stream breaks off in a message, which must not be taken for the end of the rank:
    it would wait for further rows without end. Between two messages Arrow takes the break for the end of the rows: so
    the mark that Spark writes after the last one has to be there.
    """
    rest = iter(batches)
    try:
        with _seen_as_it_opens() as opened:
            first = next(rest, None)  # now the worker opens the stream
        if len(opened) != 1:
            raise RuntimeError("this version of pyspark hands on rows in another way: their end cannot be checked")
        if first is not None:
            yield first
            yield from rest
    except (OSError, import_pyarrow().ArrowInvalid) as error:
        raise RuntimeError(f"the rows that Spark has for this task break off: {error}") from error
    if opened[0].at_end:
        raise RuntimeError("the rows that Spark has for this task break off: the mark of their end is missing")


class _SeenStream:
    """A stream of Arrow that knows whether a read has come to its end: the mark comes before that."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.at_end = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, count: int) -> bytes:
        data: bytes = self._stream.read(count)
        self.at_end |= len(data) < count
        return data


@contextmanager
def _seen_as_it_opens() -> Iterator[list[_SeenStream]]:
    """The streams of Arrow that this process opens meanwhile. pyspark gives the batches and not their stream."""
    ipc = import_pyarrow().ipc
    opened: list[_SeenStream] = []
    plain = ipc.open_stream

    def open_stream(source: Any, **options: Any) -> Any:
        opened.append(_SeenStream(source))
        return plain(opened[-1], **options)

    ipc.open_stream = open_stream
    try:
        yield opened
    finally:
        ipc.open_stream = plain


_PIECE_BYTES = 64 << 20


def _small(batch: Any) -> Iterator[Any]:
    """The batch in parts that are not too large to be sent at once."""
    if batch.nbytes <= _PIECE_BYTES or batch.num_rows < 2:
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _small(batch.slice(0, half))
    yield from _small(batch.slice(half))


def _piece(schema: Any, batches: Sequence[Any]) -> memoryview:
    pa = import_pyarrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return memoryview(sink.getvalue())
