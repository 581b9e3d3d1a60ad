"""Computes each row of a batch on one rank alone, though all ranks read what it is computed of.

In ``source.shuffle(1000).map(load).batch(64)`` each rank needs some rows of a batch, or some batches. What a ``map``
makes of an element does not depend on its place. So places are chosen first, and ``load`` runs for those alone: ``map``
changes places with what only moves elements (``shuffle``, ``take``, ``skip``, ``repeat``, ``zip``), and a batch is
formed of the rank's rows. Each batch has the rows that it has in one process. Arrays are read in the same way: their
rows are what a function makes of places.

That holds for functions that are functions: those that draw random numbers, run Python or assign variables may depend
on how often they have run. Under ``AutoShardPolicy.AUTO``, TensorFlow's default, such a dataset is not divided here;
``DATA`` and ``FILE`` say that it may be.

TensorFlow has no public view of a dataset's operations. This module reads private attributes; where TensorFlow lacks
one, datasets are divided after their rows are computed, which is slower and gives the same numbers.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

_AUTO = (tf.data.experimental.AutoShardPolicy.AUTO, tf.data.experimental.AutoShardPolicy.HINT)
# Operations whose results may depend on how often they have run. Stateless random numbers do not.
_STATEFUL = re.compile(
    "^(?!Stateless)(.*Random.*|.*TruncatedNormal|Multinomial|Rng.*|.*CandidateSampler|SampleDistorted.*|Skipgram|"
    "NonDeterministicInts|Timestamp|Stateful(?!PartitionedCall).*|.*PyFunc.*|Assign.*|Resource(Scatter|StridedSlice).*|"
    ".*Iterator.*|.*Queue.*|Shuffle.*|LookupTable(Insert|Import|Remove).*)$"
)
Bounds = Callable[[Any], tuple[Any, Any]]  # of the number of rows of a batch: where a rank's slice begins and ends
_MOST_BYTES = 1 << 28  # of a source in memory; see _seeds_of
_SMALL_ROW = 1 << 12  # bytes; it costs nothing to copy so many


def _unchanged(row: Any) -> Any:
    return row


class Part(NamedTuple):
    """A rank's part of a batch: an element of the datasets that are divided.

    Attributes:
        total: the number of rows of all ranks' parts together, int64.
        batch: this rank's rows.
        spare: a row of any rank, of each dense part of the batch; none where this rank surely has rows.
    """

    total: Any
    batch: Any
    spare: tuple[Any, ...] = ()


def spare_row(rows: Any) -> tuple[Any, ...]:
    """``Part.spare`` of some rows of the batch."""
    parts = tf.nest.flatten(rows, expand_composites=False)
    return tuple(one[:1] for one in parts if isinstance(one, tf.Tensor) and one.shape.rank != 0)


class _Rows(NamedTuple):
    """A dataset as ``source.map(compute)``.

    Attributes:
        source: a dataset.
        compute: makes an element of one of `source`; without `functions` also a batch of a batch.
        parallel: the script has asked for several calls at the same time.
        functions: the script's, which `compute` calls.
    """

    source: Any
    compute: Callable[[Any], Any] = _unchanged
    parallel: bool = False
    functions: tuple[Any, ...] = ()


class Batches(NamedTuple):
    """A dataset as batches of rows that have not been computed.

    Attributes:
        rows: what the batches have in them.
        size: rows in a batch.
        drops_last: a last batch with fewer rows is left out.
        moves: functions from a dataset to a dataset, for what moves whole batches, in order.
        repeats: one of them repeats the batches.
        whole: the dataset.
    """

    rows: _Rows
    size: int
    drops_last: bool
    moves: tuple[Callable[[Any], Any], ...]
    repeats: bool
    whole: Any

    def uncomputed(self) -> Any:
        """The dataset of the batches of what their rows are computed of."""
        batches = self.rows.source.batch(self.size, drop_remainder=self.drops_last)
        for move in self.moves:
            batches = move(batches)
        return batches

    def slices(self, bounds: Bounds, watch: Callable[[Any], Any] = _unchanged) -> Any:
        """The dataset of a rank's parts of the batches, which are slices.

        Args:
            bounds: of the slices.
            watch: gets the dataset of the whole batches of the source, returns an equal one.
        """

        def chosen(rows: Any) -> Any:
            total = tf.shape(tf.nest.flatten(rows)[0], tf.int64)[0]
            begin, end = bounds(total)
            # A slice of no rows gets one to leave out: an iterator cannot make a batch of none.
            first, count = tf.minimum(begin, total - 1), tf.maximum(end - begin, 1)
            mine = tf.nest.map_structure(lambda one: one[first : first + count], rows)
            return tf.fill([count], total), tf.fill([count], end - begin), mine

        begin, end = bounds(self.size)
        always_full = self.drops_last and end > begin

        def part(totals: Any, counts: Any, rows: Any) -> Part:
            if always_full:
                return Part(totals[0], rows)
            return Part(totals[0], tf.nest.map_structure(lambda one: one[: counts[0]], rows), spare_row(rows))

        batches = watch(self.rows.source.batch(self.size, drop_remainder=self.drops_last))
        uncomputed = batches.map(one_argument(batches, chosen)).unbatch()
        computed = self._computed(uncomputed, lambda row: (*row[:2], self.rows.compute(row[2])))
        slices = computed.batch(max(end - begin, 1), drop_remainder=self.drops_last)
        for move in self.moves:
            slices = move(slices)
        return _as(self.whole, slices.map(one_argument(slices, lambda row: part(*row))), self.whole.cardinality())

    def some(self, choose: Callable[[Any], Any]) -> Any | None:
        """The dataset of the whole batches that `choose` leaves in a dataset of all; None where it cannot be made."""
        if self.repeats:  # it may put smaller batches between others
            return None
        uncomputed = choose(self.uncomputed()).unbatch()
        computed = self._computed(uncomputed, self.rows.compute)
        batches = computed.batch(self.size, drop_remainder=self.drops_last)
        return _as(self.whole, batches, choose(self.whole).cardinality())

    def _computed(self, chosen: Any, compute: Callable[[Any], Any]) -> Any:
        return chosen.map(
            one_argument(chosen, compute), num_parallel_calls=tf.data.AUTOTUNE if self.rows.parallel else None
        )


class Gathered(NamedTuple):
    """A dataset of batches that are gathered from arrays.

    Attributes:
        places: a dataset of the rows' places in the arrays: int64 [rows of a batch], in any structure.
        gather: makes a batch of an element of it.
        whole: the dataset.
    """

    places: Any
    gather: Callable[[Any], Any]
    whole: Any

    def slices(self, bounds: Bounds, watch: Callable[[Any], Any] = _unchanged) -> Any:
        """The dataset of a rank's parts of the batches, which are slices.

        Args:
            bounds: of the slices.
            watch: gets the dataset of the places of whole batches, returns an equal one.
        """

        def part(places: Any) -> Part:
            total = tf.size(tf.nest.flatten(places)[0], tf.int64)
            begin, end = bounds(total)
            first, count = tf.minimum(begin, total - 1), tf.maximum(end - begin, 1)
            rows = self.gather(tf.nest.map_structure(lambda one: one[first : first + count], places))
            return Part(total, tf.nest.map_structure(lambda one: one[: end - begin], rows), spare_row(rows))

        return self._gathered(watch(self.places), part)

    def some(self, choose: Callable[[Any], Any]) -> Any:
        """The dataset of the whole batches that `choose` leaves in a dataset of all."""
        return self._gathered(choose(self.places), self.gather)

    def _gathered(self, places: Any, gather: Callable[[Any], Any]) -> Any:
        batches = places.map(one_argument(places, gather), num_parallel_calls=tf.data.AUTOTUNE)
        return _as(self.whole, batches, places.cardinality())


def one_argument(dataset: Any, function: Callable[[Any], Any]) -> Callable[..., Any]:
    """`function` of an element of `dataset`, as ``map`` calls it."""
    alone = type(dataset.element_spec) is not tuple
    return tf.autograph.experimental.do_not_convert(lambda *element: function(element[0] if alone else element))


def _as(whole: Any, dataset: Any, cardinality: Any) -> Any:
    """`dataset`, which was made of `whole`, with its options."""
    if int(cardinality) != tf.data.UNKNOWN_CARDINALITY:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    dataset = dataset.prefetch(tf.data.AUTOTUNE).with_options(whole.options())
    dataset._tfcollective_whole = whole  # which owns the seeds of shuffles
    return dataset


def batches_of(dataset: Any) -> Batches | Gathered | None:
    """Returns `dataset` as batches of rows; None if nothing would be won, or where the result could differ."""
    try:
        return _gathered(dataset) or _batches(dataset)
    except (AttributeError, tf.errors.OpError, ValueError):  # a TensorFlow of other attributes, or a graph too large
        return None


def _gathered(dataset: Any) -> Gathered | None:
    one = dataset
    while type(one).__name__ in ("_PrefetchDataset", "_OptionsDataset"):
        one = one._input_dataset
    if type(one).__name__ != "_ParallelMapDataset" or type(one._input_dataset).__name__ != "_ZipDataset":
        return None
    function = one._map_func._func
    if function.__name__ != "grab_batch" or function.__module__.partition(".")[0] not in ("keras", "tf_keras"):
        return None
    places, inputs = one._input_dataset._inputs()
    arrays = next(iter(inputs))
    return Gathered(places, lambda chosen: function(chosen, arrays), dataset)


def _batches(dataset: Any) -> Batches | Gathered | None:
    moves: list[Callable[[Any], Any]] = []
    repeats, one = False, dataset
    while type(one).__name__ not in ("_BatchDataset", "_ParallelBatchDataset"):
        move = _moved(one)
        if move is None or type(one).__name__ == "_ShuffleDataset":
            return None
        moves.insert(0, move)
        repeats = repeats or type(one).__name__ == "_RepeatDataset"
        one = one._input_dataset
    if not _is_dense(one._input_dataset):
        return None
    rows = _rows(one._input_dataset)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if rows.compute is _unchanged or not _has_equal_shapes(rows.source) or _is_wider(rows.source, one._input_dataset):
        return None
    if policy in _AUTO and not all(is_pure(function) for function in rows.functions):
        return None
    size, drops_last = tf.get_static_value(one._batch_size), tf.get_static_value(one._drop_remainder)
    if size is None:
        return None
    batches = Batches(rows, int(size), bool(drops_last), tuple(moves), repeats, dataset)
    return batches if rows.functions else Gathered(batches.uncomputed(), rows.compute, dataset)


def _is_dense(dataset: Any) -> bool:
    return all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(dataset.element_spec))


def _has_equal_shapes(dataset: Any) -> bool:
    """True if it is sure that batches of the elements can be formed."""
    return _is_dense(dataset) and all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(dataset.element_spec))


def _is_wider(source: Any, computed: Any) -> bool:
    """True if batches and shuffles of the source would take much more memory, as of series that windows are cut of."""
    return _bytes_of_row(source) > _SMALL_ROW + 2 * _bytes_of_row(computed)


def _bytes_of_row(dataset: Any) -> int:
    """At least so many: unknown dimensions count as 1."""
    return sum(
        spec.dtype.size * math.prod(size or 1 for size in spec.shape) if spec.shape.rank else spec.dtype.size
        for spec in tf.nest.flatten(dataset.element_spec)
    )


def _rows(dataset: Any) -> _Rows:
    kind = type(dataset).__name__
    if kind == "_TensorSliceDataset" and _is_dense(dataset):
        return _sliced(dataset)
    if kind in ("_MapDataset", "_ParallelMapDataset"):
        return _mapped(dataset, _rows(dataset._input_dataset), parallel=kind == "_ParallelMapDataset")
    if kind == "_ZipDataset":
        return _zipped(dataset)
    move = _moved(dataset)
    if move is None:
        return _Rows(dataset)
    above = _rows(dataset._input_dataset)
    return _Rows(dataset) if above.compute is _unchanged else above._replace(source=move(above.source))


def _sliced(dataset: Any) -> _Rows:
    with tf.device("CPU:0"):
        arrays = [tf.identity(one) for one in dataset._tensors]

    def compute(places: Any) -> Any:
        return tf.nest.pack_sequence_as(dataset.element_spec, [tf.gather(one, places) for one in arrays])

    return _Rows(tf.data.Dataset.range(arrays[0].shape[0]), compute)


def _mapped(dataset: Any, above: _Rows, *, parallel: bool) -> _Rows:
    from tensorflow.python.data.util import structure

    function, given, made = dataset._map_func.function, dataset._input_dataset.element_spec, dataset.element_spec

    def compute(row: Any) -> Any:
        return structure.from_tensor_list(made, function(*structure.to_tensor_list(given, above.compute(row))))

    return _Rows(above.source, compute, parallel or above.parallel, (*above.functions, function))


def _zipped(dataset: Any) -> _Rows:
    parts = [_rows(one) for one in dataset._inputs()]
    if all(one.compute is _unchanged for one in parts):
        return _Rows(dataset)

    def compute(row: Any) -> Any:
        values = [one.compute(value) for one, value in zip(parts, row, strict=True)]
        return tf.nest.pack_sequence_as(dataset._datasets, values)

    return _Rows(
        tf.data.Dataset.zip(tuple(one.source for one in parts)),
        compute,
        any(one.parallel for one in parts),
        sum((one.functions for one in parts), ()),
    )


def _moved(dataset: Any) -> Callable[[Any], Any] | None:
    """What `dataset` does with its input, as a function of another input, if it moves elements and changes none."""
    kind = type(dataset).__name__
    if kind in ("_PrefetchDataset", "_OptionsDataset"):  # both come last again
        return lambda source: source
    if kind in ("_TakeDataset", "_SkipDataset", "_RepeatDataset"):
        return lambda source: getattr(source, kind[1:].removesuffix("Dataset").lower())(dataset._count)
    if kind == "_ShuffleDataset":
        return lambda source: _shuffled(dataset, source)
    return None


def _shuffled(dataset: Any, source: Any) -> Any:
    """`source` in the order that the shuffle `dataset` would give its elements, with one count of iterators for both.

    Raises:
        ValueError: elements have parts that are no tensors, or the graph would have too large constants.
    """
    if not _is_dense(source):
        raise ValueError("not tensors")
    variant = _variant_of_shuffle(dataset, source, _seeds_of(dataset))
    return tf.data.experimental.from_variant(variant, source.element_spec)


def _variant_of_shuffle(shuffle: Any, source: Any, seeds: Any) -> Any:
    specs = tf.nest.flatten(source.element_spec)
    return tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(source),
        buffer_size=shuffle._buffer_size,
        seed=shuffle._seed,
        seed2=shuffle._seed2,
        seed_generator=seeds,
        reshuffle_each_iteration=shuffle._reshuffle_each_iteration,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )


@functools.cache
def keep_seeds() -> None:
    """From now on, each shuffle keeps the handle of its seeds, which TensorFlow's operation makes and does not show."""
    from tensorflow.python.data.ops import shuffle_op

    shuffle_op._ShuffleDataset.__init__ = _keeping(shuffle_op._ShuffleDataset.__init__)


def _keeping(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def made(shuffle: Any, *args: Any, **kwargs: Any) -> None:
        make(shuffle, *args, **kwargs)
        if tf.executing_eagerly() and _is_dense(shuffle):
            seeds = tf.raw_ops.AnonymousSeedGenerator(
                seed=shuffle._seed, seed2=shuffle._seed2, reshuffle=bool(shuffle._reshuffle_each_iteration)
            )
            shuffle._variant_tensor_attr = _variant_of_shuffle(shuffle, shuffle._input_dataset, seeds.handle)
            shuffle._tfcollective_seeds = seeds

    return made


def _seeds_of(shuffle: Any) -> Any:
    """The resource that a shuffle draws the seeds of its iterators from.

    That of a shuffle which was made before `keep_seeds` is found in the dataset's graph, which takes a while.
    """
    if hasattr(shuffle, "_tfcollective_seeds"):
        return shuffle._tfcollective_seeds.handle
    last, graph = _graph_of(shuffle)
    (handle,) = (node for node in graph.node if node.name == last.input[4])
    alone = tf.compat.v1.GraphDef(node=[handle], versions=graph.versions)
    return tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(alone, return_elements=[f"{handle.name}:0"], name=""), []
    )()[0]


def _graph_of(dataset: Any) -> tuple[Any, Any]:
    """The operation that makes the elements of `dataset`, and the graph that it is in.

    Raises:
        ValueError: the graph would have too large constants.
        OpError: of TensorFlow, where it cannot be written down.
    """
    if _bytes_in_memory(dataset) > _MOST_BYTES:
        raise ValueError("too large for a graph")
    variant = tf.data.experimental.to_variant(dataset)
    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant, external_state_policy=1, strip_device_assignment=True
    )
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    nodes = {node.name: node for node in graph.node}
    (returned,) = (node for node in graph.node if node.op == "_Retval")
    return nodes[returned.input[0]], graph


def is_unordered(dataset: Any) -> bool:
    """True if its own operation may bring elements in another order each time: ``deterministic=False``."""
    if type(dataset).__name__ != "_ParallelInterleaveDataset":
        return getattr(dataset, "_deterministic", None) == "false"
    try:  # its object has forgotten the argument
        return bool(_graph_of(dataset)[0].attr["deterministic"].s == b"false")
    except (ValueError, tf.errors.OpError):
        return False


def _bytes_in_memory(dataset: Any) -> int:
    ahead, count = [dataset], 0
    while ahead:
        one = ahead.pop()
        ahead += one._inputs()
        count += sum(tensor.dtype.size * int(tf.size(tensor)) for tensor in getattr(one, "_tensors", ()))
    return count


def is_pure(function: Any) -> bool:
    """True if the results of TensorFlow's `function` depend on its arguments alone."""
    graph = function.graph.as_graph_def()
    nodes: Sequence[Any] = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
    return not any(_STATEFUL.match(node.op) for node in nodes)
