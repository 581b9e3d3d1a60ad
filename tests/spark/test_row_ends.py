"""The rows of a task end with a mark: what pyspark hands on is read to it, or the task fails."""

import io

import pytest
from tfcollective_launchers.spark.rows import read_from_spark

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def stream():
    """Three batches as Spark writes them, and where the messages end: the schema, the batches, the mark."""
    sink = io.BytesIO()
    ends = []
    with pa.ipc.new_stream(sink, pa.schema([("x", pa.int64())])) as writer:
        for begin in (0, 10, 20):
            writer.write_batch(pa.record_batch({"x": list(range(begin, begin + 10))}))
            ends.append(sink.tell())
    return sink.getvalue(), ends


def numbers(data):
    """What a task reads of this; pyspark's own class is between."""
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    batches = ArrowStreamSerializer().load_stream(io.BufferedReader(io.BytesIO(data)))
    return [number for batch in read_from_spark(batches) for number in batch.column(0).to_pylist()]


def test_only_rows_before_the_mark_are_read(stream):
    data, _ = stream
    plain = pa.ipc.open_stream
    assert numbers(data) == list(range(30))
    assert numbers(data + b"what Spark says next") == list(range(30))
    assert pa.ipc.open_stream is plain


def test_a_share_may_have_no_rows():
    sink = io.BytesIO()
    pa.ipc.new_stream(sink, pa.schema([("x", pa.int64())])).close()
    assert numbers(sink.getvalue()) == []


def test_a_break_between_two_batches_is_an_error(stream):
    data, ends = stream
    for end in ends:
        with pytest.raises(RuntimeError, match="break off: the mark of their end is missing"):
            numbers(data[:end])


def test_a_break_anywhere_is_an_error(stream):
    data, _ = stream
    for end in range(len(data)):
        with pytest.raises(RuntimeError, match="break off"):
            numbers(data[:end])


def test_batches_whose_stream_is_not_seen_are_refused(stream):
    with pytest.raises(RuntimeError, match="another way"):
        list(read_from_spark(iter([pa.record_batch({"x": [1]})])))
