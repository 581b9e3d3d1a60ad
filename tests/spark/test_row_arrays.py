"""Columns of Arrow become arrays: pyarrow is among what `make test-spark` installs."""

import numpy as np
import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.rows.arrays import arrays_of, check_schema, columns, dtypes_of, rebatched

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.spark


def test_numbers_texts_and_arrays_of_them():
    table = pa.table(
        {
            "number": pa.array([1, 2], pa.int32()),
            "flag": [True, False],
            "text": ["a", "\u00e4"],
            "bytes": [b"x", b""],
            "vector": [[1.0, 2.0], [3.0, 4.0]],
            "matrix": [[[1, 2]], [[3, 4]]],
        }
    )
    found = arrays_of(table)
    assert found["number"].dtype == np.int32
    assert found["flag"].tolist() == [True, False]
    assert found["text"].tolist() == [b"a", "\u00e4".encode()]
    assert found["bytes"].tolist() == [b"x", b""]
    assert found["vector"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert found["matrix"].shape == (2, 1, 2)
    axes = {
        name: (dtype, array.ndim) for (name, array), (dtype, _) in zip(found.items(), dtypes_of(table.schema).values())
    }
    assert axes == dtypes_of(table.schema)


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (pa.array([1, None]), "has nulls"),
        (pa.array([[1.0], [1.0, 2.0]]), "lists of 1 to 2 values"),
        (pa.array([[1.0], [None]]), "has nulls"),
        (pa.array([{"a": 1}, {"a": 2}]), "cannot become an array"),
    ],
)
def test_what_cannot_be_an_array_is_named(column, what):
    with pytest.raises(ConfigError, match=f"column 'x'.*{what}"):
        arrays_of(pa.table({"x": column}))


def test_a_schema_is_checked_before_there_are_rows():
    check_schema(pa.schema([("x", pa.list_(pa.float32()))]))
    with pytest.raises(ConfigError, match="column 'when'"):
        check_schema(pa.schema([("when", pa.timestamp("us"))]))


@pytest.mark.parametrize("sizes", [(), (1,), (10,), (3, 4, 5), (0, 7, 0, 2), (25, 1)])
@pytest.mark.parametrize("size", [1, 4, 10])
def test_batches_have_the_size_that_is_wanted(sizes, size):
    numbers = iter(range(100))
    tables = [pa.table({"x": pa.array([next(numbers) for _ in range(count)], pa.int64())}) for count in sizes]
    found = [table.column("x").to_pylist() for table in rebatched(tables, size)]
    assert [number for one in found for number in one] == list(range(sum(sizes)))
    assert all(len(one) == size for one in found[:-1])
    assert all(0 < len(one) <= size for one in found[-1:])


def test_one_name_is_a_list_of_one():
    assert columns("x") == ("x",)
    assert columns(["x", "y"]) == ("x", "y")
