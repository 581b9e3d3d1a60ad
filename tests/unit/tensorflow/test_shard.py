"""Every rank gets the same number of elements."""

from __future__ import annotations

import json

import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.tensorflow as tfc
from tfcollective.errors import InvalidArgumentError
from tfcollective.identity import discover
from tfcollective.settings import Settings

pytestmark = pytest.mark.tensorflow


def always(*_element: object) -> bool:
    return True


def unknown(dataset: object) -> object:
    """The same dataset, its cardinality forgotten."""
    return dataset.filter(always)


DATASETS = {
    "known": tf.data.Dataset.range(7),
    "unknown": unknown(tf.data.Dataset.range(7)),
    "pairs": unknown(tf.data.Dataset.range(7).map(lambda x: (x, x * 2))),
    "nested": unknown(tf.data.Dataset.range(7).map(lambda x: ({"a": x, "b": (x, x)}, x))),
    "dictionary": unknown(tf.data.Dataset.range(7).map(lambda x: {"a": x})),
    "ragged batches": unknown(tf.data.Dataset.range(7).batch(2)),
}


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("size", [2, 3])
def test_even_parts(name: str, size: int) -> None:
    dataset = DATASETS[name]
    whole = [tf.nest.flatten(e) for e in dataset.as_numpy_iterator()]
    parts = []
    for rank in range(size):
        with fake_world(size=size, rank=rank):
            part = tfc.shard(dataset)
        assert part.element_spec == dataset.element_spec
        parts.append([tf.nest.flatten(e) for e in part.as_numpy_iterator()])
    assert {len(part) for part in parts} == {len(whole) // size}
    for rank, part in enumerate(parts):
        expected = whole[: len(whole) // size * size][rank::size]
        assert [[v.tolist() for v in e] for e in part] == [[v.tolist() for v in e] for e in expected]


@pytest.mark.parametrize(
    ("kind", "index", "part"), [("chief", 0, [0, 3, 6]), ("worker", 0, [1, 4, 7]), ("worker", 1, [2, 5, 8])]
)
def test_the_chief_has_part_0_and_worker_i_part_i_plus_1(kind: str, index: int, part: list[int]) -> None:
    cluster = {"chief": ["h0:1"], "worker": ["h1:1", "h2:1"]}
    config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    identity = discover(Settings(node_id="n"), {"TF_CONFIG": config})
    with fake_world(size=identity.world_size, rank=identity.trainers.index(identity.task)):
        assert list(tfc.shard(tf.data.Dataset.range(10)).as_numpy_iterator()) == part


def test_uneven_on_request() -> None:
    with fake_world(size=2, rank=0):
        assert list(tfc.shard(tf.data.Dataset.range(7), even=False).as_numpy_iterator()) == [0, 2, 4, 6]


def test_infinite_datasets() -> None:
    with fake_world(size=2, rank=1):
        part = tfc.shard(tf.data.Dataset.range(3).repeat())
        assert list(part.take(4).as_numpy_iterator()) == [1, 0, 2, 1]


def test_too_few_elements() -> None:
    with fake_world(size=3), pytest.raises(InvalidArgumentError, match="2 elements"):
        tfc.shard(tf.data.Dataset.range(2))


def test_one_rank_gets_the_dataset_itself() -> None:
    dataset = tf.data.Dataset.range(2)
    with fake_world(size=1):
        assert tfc.shard(dataset) is dataset


@pytest.mark.parametrize("rank", [0, 1])
def test_in_a_graph_where_the_number_of_elements_is_not_known_yet(rank: int) -> None:
    with fake_world(rank=rank), tf.Graph().as_default():
        part = tfc.shard(tf.data.Dataset.range(5))
        element = tf.compat.v1.data.make_one_shot_iterator(part.batch(10)).get_next()
        with tf.compat.v1.Session() as session:
            assert session.run(element).tolist() == [rank, rank + 2]
