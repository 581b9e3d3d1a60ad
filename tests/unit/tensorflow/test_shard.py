"""Every rank gets the same number of elements."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.tensorflow as tfc
from tfcollective._base.errors import InvalidArgumentError
from tfcollective._base.settings import Settings
from tfcollective._control.identity import discover

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def _no_seed() -> Iterator[None]:
    """The process has no seed, also where a test before these, in the same process, has set one."""
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(None)


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
def test_the_chief_precedes_the_workers_parts(kind: str, index: int, part: list[int]) -> None:
    cluster = {"chief": ["h0:1"], "worker": ["h1:1", "h2:1"]}
    config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    identity = discover(Settings(node_id="n"), {"TF_CONFIG": config})
    with fake_world(size=identity.world_size, rank=identity.trainers.index(identity.task)):
        assert list(tfc.shard(tf.data.Dataset.range(10)).as_numpy_iterator()) == part


def lines(name: object) -> object:
    return tf.data.Dataset.range(3).map(lambda x: tf.strings.join([name, tf.strings.as_string(x)]))


def shuffled_lines(name: object) -> object:
    return lines(name).shuffle(3)


def nested(names: object) -> object:
    return tf.data.Dataset.from_tensors(names).flat_map(shuffled_lines)


def unordered(dataset: object) -> object:
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name)
    return str(tmp_path / "*.txt")


@pytest.mark.parametrize("size", [1, 2])
def test_arrays_are_no_datasets(size: int) -> None:
    with fake_world(size=size), pytest.raises(InvalidArgumentError, match=r"got ndarray: .*from_tensor_slices"):
        tfc.shard(np.arange(4))


def interleaved(kind: Any = tf.data.Dataset, **options: Any) -> Any:
    return kind.range(8).interleave(lambda x: tf.data.Dataset.range(2), num_parallel_calls=2, **options)


def sloppy() -> Callable:
    return tf.data.experimental.parallel_interleave(lambda x: tf.data.Dataset.range(2), 2, sloppy=True)


def parsed(**options: Any) -> Any:
    features = {"a": tf.io.FixedLenFeature([], tf.int64, 0)}
    texts = tf.data.Dataset.from_tensors([tf.train.Example().SerializeToString()] * 8).repeat(2)
    return texts.apply(tf.data.experimental.parse_example_dataset(features, 2, **options))


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (tf.data.Dataset.list_files, "ShuffleDataset"),
        (lambda p: tf.data.Dataset.list_files(p).interleave(tf.data.TextLineDataset).map(tf.strings.upper), "Shuffle"),
        (lambda p: tf.data.Dataset.list_files(p, shuffle=False).interleave(shuffled_lines), "in the function of"),
        (lambda p: tf.data.Dataset.list_files(p, shuffle=False).flat_map(nested), "in the function of FlatMap"),
        (lambda p: tf.data.Dataset.range(8).shuffle(8).batch(2).cache().prefetch(1), "ShuffleDataset"),
        (lambda p: tf.data.Dataset.zip((tf.data.Dataset.range(8), tf.data.Dataset.random())), "RandomDataset"),
        (lambda p: tf.data.Dataset.sample_from_datasets([tf.data.Dataset.range(8)] * 2), "RandomDataset"),
        (lambda p: tf.data.Dataset.range(8).map(abs, num_parallel_calls=2, deterministic=False), "deterministic"),
        (lambda p: unordered(tf.data.Dataset.range(8).map(abs, num_parallel_calls=2)).batch(2), "deterministic"),
        (lambda p: interleaved(deterministic=False), "ParallelInterleaveDataset with deterministic=False"),
        (lambda p: interleaved(deterministic=False).batch(2).prefetch(1), "ParallelInterleaveDataset with"),
        (lambda p: unordered(interleaved()), "ParallelInterleaveDataset with"),
        (lambda p: tf.data.Dataset.range(8).apply(sloppy()), "ParallelInterleaveDataset with"),
        (lambda p: tf.data.Dataset.range(8).batch(2, num_parallel_calls=2, deterministic=False), "ParallelBatch"),
        (lambda p: parsed(deterministic=False), "ParseExampleDataset with"),
        (lambda p: unordered(parsed()), "ParseExampleDataset with"),
        (
            lambda p: tf.data.Dataset.range(2).flat_map(lambda x: interleaved(deterministic=False)),
            "ParallelInterleaveDatasetV4 with deterministic=False in the function of FlatMap",
        ),
        (lambda p: unordered(tf.data.Dataset.range(2).flat_map(lambda x: interleaved())), "in the function of FlatMap"),
    ],
)
def test_an_order_left_to_chance_is_refused(make: Callable, named: str, even: bool, pattern: str) -> None:
    dataset = make(pattern)
    with fake_world(size=2), pytest.raises(InvalidArgumentError, match=rf"{named}.*Use shard\(\) before shuffle\(\)"):
        tfc.shard(dataset, even=even)


def test_a_graph_refuses_a_random_order() -> None:
    with fake_world(size=2), tf.Graph().as_default():
        for kind in (tf.data.Dataset, tf.compat.v1.data.Dataset):
            with pytest.raises(InvalidArgumentError, match="ShuffleDataset without a seed"):
                tfc.shard(kind.range(8).shuffle(8))
            with pytest.raises(InvalidArgumentError, match="ParallelInterleaveDataset with deterministic=False"):
                tfc.shard(interleaved(kind, deterministic=False))
            tfc.shard(interleaved(kind))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: tf.data.Dataset.list_files(p, seed=1),
        lambda p: tf.data.Dataset.list_files(p, shuffle=False).interleave(lambda n: lines(n).shuffle(3, seed=0)),
        lambda p: tf.data.Dataset.range(8).shuffle(8, seed=0).repeat(2),
        lambda p: tf.data.Dataset.sample_from_datasets([tf.data.Dataset.range(8)] * 2, seed=2),
        lambda p: tf.data.Dataset.range(8).map(lambda x: (x, tf.random.uniform([]))).batch(2),
        lambda p: unordered(tf.data.Dataset.range(8).interleave(lambda x: tf.data.Dataset.range(2))),
        lambda p: interleaved(),
        lambda p: unordered(interleaved(deterministic=True)),
        lambda p: interleaved(deterministic=True).interleave(lambda x: tf.data.Dataset.range(x)),
        lambda p: tf.data.Dataset.range(2).flat_map(lambda x: interleaved()),
        lambda p: parsed(),
    ],
)
def test_an_order_that_a_seed_gives_is_taken(make: Callable, pattern: str) -> None:
    with fake_world(size=2):
        tfc.shard(make(pattern))


def test_the_seed_of_the_program_counts() -> None:
    tf.random.set_seed(5)
    with fake_world(size=2):
        tfc.shard(tf.data.Dataset.range(8).shuffle(8))


def test_one_rank_may_shuffle_as_it_likes() -> None:
    with fake_world(size=1):
        tfc.shard(tf.data.Dataset.range(8).shuffle(8))


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
def test_a_graph_without_a_known_cardinality(rank: int) -> None:
    with fake_world(rank=rank), tf.Graph().as_default():
        part = tfc.shard(tf.data.Dataset.range(5))
        element = tf.compat.v1.data.make_one_shot_iterator(part.batch(10)).get_next()
        with tf.compat.v1.Session() as session:
            assert session.run(element).tolist() == [rank, rank + 2]
