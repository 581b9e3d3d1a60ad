"""Reduces the gradients of one training step: bucket plans for dense gradients, all-gather for sparse ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._base.log import get_logger
from tfcollective._runtime import Members, ProcessSet
from tfcollective._runtime.communicator import Average, Op, Sum
from tfcollective.tensorflow import _ops as ops
from tfcollective.tensorflow import _xla as xla
from tfcollective.tensorflow._adasum import Adasum, adasum
from tfcollective.tensorflow._compression import Compression
from tfcollective.tensorflow._functions import as_of_one_batch, gathered_slices, merged
from tfcollective.tensorflow._helpers import size_in_graph
from tfcollective.tensorflow._names import keep_plan, plan_names, step_names
from tfcollective.tensorflow._plan import (
    BucketPlan,
    BucketSizes,
    GradientSpec,
    Reduction,
    fixed_sizes,
    plan_buckets,
    signature,
    sizes_for_network,
)
from tfcollective.tensorflow._readiness import ready_order
from tfcollective.tensorflow._replica_check import ReplicaCheck

_LOG = get_logger(__name__)


@dataclass(frozen=True)
class GradientOptions:
    """The options for reducing gradients; ``tfcollective.tensorflow._docstrings`` says what they mean.

    Attributes:
        op: Average or Sum.
        num_groups: the number of buckets, whatever their size; 0: they are made by size.
        groups: lists of variables whose gradients share a bucket.
        process_set: whose ranks take part; all if None. On other ranks gradients stay as they are.
        adasum: each gradient is combined by Adasum instead of `op`.
        replica_check: what an optimizer compares between the ranks, and what it does about differences.
    """

    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: Op = Average
    gradient_predivide_factor: float = 1.0
    num_groups: int = 0
    groups: Any = ()
    scale_local_gradients: bool = True
    process_set: ProcessSet | None = None
    adasum: bool = False
    replica_check: ReplicaCheck = field(default_factory=ReplicaCheck)

    @classmethod
    def checked(cls, arguments: Mapping[str, Any], *, may_be_adasum: bool = False) -> GradientOptions:
        """Options from the arguments of a wrapper, its ``locals()``; those that are not options are passed over.

        Raises:
            UnsupportedError: another reduction than Average or Sum.
            InvalidArgumentError: arguments that exclude each other.
        """
        given = cls(**{one.name: arguments[one.name] for one in fields(cls) if arguments.get(one.name) is not None})
        op = given.op
        num_groups, groups = (given.groups, ()) if isinstance(given.groups, int) else (0, given.groups or ())
        is_adasum = may_be_adasum and op == Adasum
        if is_adasum and given.compression is not Compression.none:
            warn_of_adasum()
        if op == Adasum and not is_adasum:
            raise UnsupportedError(
                "op=Adasum: optimizers reduce gradients with Average or Sum; use DistributedGradientTape(op=Adasum)"
            )
        if op not in (Average, Sum) and not is_adasum:
            raise UnsupportedError(f"op={op!r}: gradients are reduced with Average or Sum")
        if given.gradient_predivide_factor != 1.0 and op != Average:
            raise InvalidArgumentError("gradient_predivide_factor: only with op=Average")
        if not isinstance(given.replica_check, ReplicaCheck):
            raise InvalidArgumentError(f"replica_check: expected a ReplicaCheck, got {given.replica_check!r}")
        if not isinstance(given.process_set, ProcessSet | None):
            raise InvalidArgumentError(f"process_set: expected a ProcessSet, got {given.process_set!r}")
        if num_groups < 0:
            raise InvalidArgumentError(f"groups: expected 0 or more, or lists of variables, got {num_groups}")
        return replace(
            given,
            op=Sum if is_adasum else Op(op),
            adasum=is_adasum,
            gradient_predivide_factor=float(given.gradient_predivide_factor),
            num_groups=num_groups,
            groups=tuple(tuple(group) for group in groups),
        )

    def reduction(self) -> Reduction:
        """The native reduction of dense gradients."""
        factor = self.gradient_predivide_factor
        return Reduction(self.op, prescale=1.0 / factor, postscale=factor)


@functools.cache
def warn_of_adasum() -> None:
    """Once a process: a tape is made in every step."""
    _LOG.warning("op=Adasum: compression is not used, gradients are combined and sent in float32 or wider")


def variable_name(variable: Any, index: int) -> str:
    """A variable's name for messages: Keras's path, TensorFlow's name, or its place. Ranks may have other names, as
    Keras numbers them."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or f"gradient_{index}")


def variable_key(variable: Any) -> int:
    """Identifies a variable, whether it comes as Keras's or as TensorFlow's object."""
    inner = getattr(variable, "value", None)
    return id(variable if inner is None or callable(inner) else inner)


class LocalVariables:
    """The variables that stay each rank's own: single ones, and the trainable weights of layers, built or not yet."""

    def __init__(self) -> None:
        self._variables: dict[int, Any] = {}  # held, so that no other object gets the key
        self._layers: list[Any] = []

    def add(self, variable: Any) -> None:
        """Adds one variable."""
        self._variables[variable_key(variable)] = variable

    def add_layers(self, layers: Any) -> None:
        """A layer, a list of layers, or None.

        Raises:
            InvalidArgumentError: one of them is no layer.
        """
        given = [] if layers is None else [layers] if hasattr(layers, "trainable_weights") else list(layers)
        for layer in given:
            if not hasattr(layer, "trainable_weights"):
                raise InvalidArgumentError(f"local_layers: expected Keras layers, got {layer!r}")
        self._layers += given

    def copy(self) -> LocalVariables:
        """Returns a copy; variables that are added to it are not added here."""
        made = LocalVariables()
        made._variables = dict(self._variables)
        made._layers = list(self._layers)
        return made

    def keys(self) -> frozenset[int]:
        """:func:`variable_key` of all of them, as far as they exist."""
        weights = (weight for layer in self._layers for weight in layer.trainable_weights)
        return frozenset([*self._variables, *map(variable_key, weights)])


def reduce_gradients(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *,
    scope: str,
    options: GradientOptions,
    local: frozenset[int] = frozenset(),
    adds_rows: bool = True,
) -> list[Any]:
    """Reduces gradients over the ranks. On a rank outside the process set they stay as they are. With one rank they do,
    too, but for `adds_rows`.

    Args:
        gradients: tensors, IndexedSlices or None, one for each variable. None stays None.
        variables: what they are the gradients of; the same list on all ranks.
        scope: names the place in the program; see :class:`PlanNames`.
        options: how.
        local: keys (:func:`variable_key`) of variables whose gradients are not reduced.
        adds_rows: equal rows of IndexedSlices are added. Otherwise they are as in a batch of one process.
    """
    members = runtime.members(options.process_set, outside=True)
    reduced = list(gradients)
    if not members.included:
        return reduced
    if xla.is_compiled():
        reduced = [_dense(one, adds_rows) if isinstance(one, tf.IndexedSlices) else one for one in reduced]
    if members.alone:  # an update must not depend on the number of ranks
        return [merged(one) if isinstance(one, tf.IndexedSlices) else one for one in reduced]
    refuse_strategy("gradients")
    dense: list[int] = []
    sparse: list[int] = []
    for index, gradient in enumerate(reduced):
        if gradient is None:
            continue
        if variable_key(variables[index]) in local:
            reduced[index] = _local_gradient(gradient, options, members)
        elif isinstance(gradient, tf.IndexedSlices) and not options.sparse_as_dense:
            sparse.append(index)
        else:
            dense.append(index)
    names = [variable_name(variable, index) for index, variable in enumerate(variables)]
    for index in dense:
        reduced[index] = tf.convert_to_tensor(reduced[index])
    step = step_names(members.process_set_id).name(scope, "\n".join(names))
    if options.adasum:
        return _adasum(reduced, dense, sparse, step, names, members)
    order = _order([gradients[index] for index in dense])
    finish = _start_dense(reduced, dense, names, variables, order, scope, options, members)
    for index in sparse:
        rows = gathered_slices(
            gradients[index], options.op, f"{step}/{index}", members, names[index], options.compression
        )
        reduced[index] = merged(rows) if adds_rows else as_of_one_batch(rows, members.size)
    for index, result in finish():
        reduced[index] = result
    return reduced


def _dense(slices: Any, adds_rows: bool) -> Any:
    """A sparse gradient in a function that XLA compiles, where all shapes are known: which rows a batch has is not."""
    if not adds_rows:
        raise UnsupportedError(
            "jit_compile=True: the rows of an embedding's gradient stay apart where batches are divided, and XLA needs "
            "their number: compile with jit_compile=False"
        )
    return tf.convert_to_tensor(slices)


def _adasum(
    gradients: list[Any], dense: Sequence[int], sparse: Sequence[int], step: str, names: Sequence[str], members: Members
) -> list[Any]:
    if sparse:
        raise UnsupportedError(f"op=Adasum: {names[sparse[0]]} has IndexedSlices: use sparse_as_dense=True")
    for index in dense:
        gradients[index] = adasum(gradients[index], f"{step}/{index}", members)
    return gradients


def _local_gradient(gradient: Any, options: GradientOptions, members: Members) -> Any:
    if not options.scale_local_gradients:
        return gradient
    size = size_in_graph(members)
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(size, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(size, gradient.dtype)


def _start_dense(
    tensors: Sequence[Any],
    indices: Sequence[int],
    names: Sequence[str],
    variables: Sequence[Any],
    order: Sequence[int] | None,
    scope: str,
    options: GradientOptions,
    members: Members,
) -> Callable[[], list[tuple[int, Any]]]:
    """Starts the reduction of the gradients with these indices. Returns a function that waits for it, and gives the
    index and the result of each.
    """
    if not indices:
        return list
    compression = options.compression
    wires, contexts = zip(*(compression.compress(tensors[index]) for index in indices), strict=True)
    specs = [_spec(index, names[index], variables[index], wire) for index, wire in zip(indices, wires, strict=True)]
    specs = _grouped(specs, [variables[index] for index in indices], options)
    plan = _plan(specs, order, scope, options, members)
    finish = ops.start_plan(plan, [[wires[member] for member in bucket.members] for bucket in plan.buckets])
    places = [member for bucket in plan.buckets for member in bucket.members]

    def finished() -> list[tuple[int, Any]]:
        results = [result for bucket in finish() for result in bucket]
        return [
            (indices[place], compression.decompress(result, contexts[place]))
            for place, result in zip(places, results, strict=True)
        ]

    return finished


def _spec(position: int, name: str, variable: Any, wire: Any) -> GradientSpec:
    known = tf.TensorShape(getattr(variable, "shape", None))
    shape = tuple(known.as_list()) if known.rank is not None else (None,)
    return GradientSpec(position, name, shape, wire.dtype.name, wire.dtype.size)


def _order(gradients: Sequence[Any]) -> list[int] | None:
    """Returns the order that the traced function gives, unless a setting fixes the buckets: then from last to first."""
    return ready_order(gradients) if runtime.settings().bucket_bytes is None else None


def _sizes(members: Members) -> BucketSizes:
    """Returns the bucket limits of a plan; equal on all ranks, as the measured network is. An elastic job keeps those
    that its first world has found, so that newcomers make the same plan."""
    asked = runtime.settings().bucket_bytes
    if asked is not None:
        return fixed_sizes(asked)
    info = runtime.communicator_of_set(members.process_set_id).info()
    found = sizes_for_network(members.size, info.link_latency, info.link_bandwidth)
    if not members.elastic:
        return found
    return BucketSizes(*runtime.current().agreed_once(f"bucket sizes/{members.process_set_id}", list(astuple(found))))


def _plan(
    specs: Sequence[GradientSpec],
    order: Sequence[int] | None,
    scope: str,
    options: GradientOptions,
    members: Members,
) -> BucketPlan:
    reduction = options.reduction()
    buckets = plan_buckets(specs, _sizes(members), order)
    text = signature(specs, buckets, reduction)
    name = plan_names(members.process_set_id).name(scope, text)
    keep_plan(name, members.process_set_id)
    return BucketPlan(name, text, buckets, reduction, members.process_set_id)


def _grouped(specs: list[GradientSpec], variables: Sequence[Any], options: GradientOptions) -> list[GradientSpec]:
    """The specs with the groups that the options ask for."""
    if options.num_groups:
        per_group = -(-len(specs) // options.num_groups)
        return [replace(spec, group=index // per_group) for index, spec in enumerate(specs)]
    group_of = {variable_key(v): number for number, group in enumerate(options.groups) for v in group}
    return [
        replace(spec, group=group_of.get(variable_key(variable)))
        for spec, variable in zip(specs, variables, strict=True)
    ]


def refuse_strategy(what: str) -> None:
    """Raises UnsupportedError in the scope or in a replica of a ``tf.distribute`` strategy; names `what`.

    A strategy has several replicas in one process, each with variables of its own. OneDeviceStrategy has one.
    """
    if not tf.distribute.has_strategy():
        return
    kind = type(tf.distribute.get_strategy())
    if not issubclass(kind, tf.distribute.OneDeviceStrategy):
        # TensorFlow's own class has another name than the one under which programs know it.
        collective = issubclass(kind, tf.distribute.MultiWorkerMirroredStrategy)
        name = f"tf.distribute.{'MultiWorkerMirroredStrategy' if collective else kind.__name__}"
        raise UnsupportedError(
            f"{what}: not in the scope of {name}: with tfcollective each process has one replica. Leave the strategy "
            "out, and start the processes with `tfcollective run -np N`; with GPUs one for each, chosen by local_rank()"
        )
