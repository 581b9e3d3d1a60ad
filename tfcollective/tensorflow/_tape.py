"""A gradient tape whose gradients are those of the global batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._runtime import ProcessSet
from tfcollective._runtime.communicator import Average, Op
from tfcollective.tensorflow._border import opaque
from tfcollective.tensorflow._compression import Compression
from tfcollective.tensorflow._docstrings import documented
from tfcollective.tensorflow._finite import FiniteCheck
from tfcollective.tensorflow._gradients import (
    GradientOptions,
    LocalVariables,
    reduce_gradients,
    variable_key,
    variable_name,
)
from tfcollective.tensorflow._guard import ReplicaGuard, after_data
from tfcollective.tensorflow._plan import PlanNames
from tfcollective.tensorflow._reductions import mark, note_tape
from tfcollective.tensorflow._variables import let_variables_be_called

_SCOPE = "tape"
_GUARD_SCOPE = "tape_guard"
_guard_names = PlanNames()
_finite_checks: defaultdict[tuple[str, ...], FiniteCheck] = defaultdict(FiniteCheck)
_guards: dict[tuple[int, tuple[str, ...]], ReplicaGuard] = {}


class _TapeMixin:
    """Stands before the class of the tape that is wrapped, and shares that tape's recording."""

    _tfcollective_options: GradientOptions
    _tfcollective_local: LocalVariables

    @opaque
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Returns the gradients of ``tf.GradientTape.gradient``, reduced over the ranks. `use_generic_names` is
        Horovod's: without effect.
        """
        del use_generic_names
        base: Any = super()
        gradients = base.gradient(target, sources, output_gradients, unconnected_gradients)
        flat = tf.nest.flatten(sources)
        local = self._tfcollective_local.keys()
        note_tape(*_by_key(flat))
        own = tf.nest.flatten(gradients)
        with after_data(own):
            checked = _guard(flat, local, self._tfcollective_options.process_set)
        with tf.control_dependencies([*checked, *_finite(own, flat)]):
            reduced = reduce_gradients(own, flat, scope=_SCOPE, options=self._tfcollective_options, local=local)
        members = runtime.members(self._tfcollective_options.process_set, outside=True)
        for source, gradient in zip(flat, reduced, strict=True):
            if gradient is not None and members.included and variable_key(source) not in local:
                mark(gradient, members.process_set_id)
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, source: Any) -> None:
        """The gradient of `source` stays this rank's own."""
        self._tfcollective_local.add(source)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """:meth:`gradient` as pairs (source, gradient): first those of local sources, then those that were reduced."""
        gradients = self.gradient(target, list(sources), output_gradients, use_generic_names=use_generic_names)
        local = self._tfcollective_local.keys()
        parts: tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]] = ([], [])
        for source, gradient in zip(sources, gradients, strict=True):
            parts[variable_key(source) not in local].append((source, gradient))
        return parts


def _by_key(sources: list[Any]) -> tuple[dict[int, Any], bool]:
    """The variables among them; True if there is something else, too."""
    variables = {variable_key(source): source for source in sources if hasattr(source, "assign")}
    return variables, len(variables) < len(sources)


def _finite(gradients: list[Any], sources: list[Any]) -> list[Any]:
    """Checks where NaN begins, if that is enabled; returns what the reduction has to wait for."""
    pairs = [(g, source) for g, source in zip(gradients, sources, strict=True) if hasattr(source, "assign")]
    content = tuple(f"{variable_name(source, i)} {source.shape}" for i, (_, source) in enumerate(pairs))
    return _finite_checks[content].step([gradient for gradient, _ in pairs], [source for _, source in pairs])


def _guard(sources: list[Any], local: frozenset[int], process_set: ProcessSet | None) -> list[Any]:
    """Proves now and then that all ranks take the gradient of the same values; what the reduction comes after."""
    shared = [s for s in sources if hasattr(s, "assign") and variable_key(s) not in local]
    content = tuple(f"{variable_name(s, i)} {s.shape}" for i, s in enumerate(shared))
    if not content:
        return []
    key = (runtime.members(process_set, outside=True).process_set_id, content)
    if key not in _guards:
        name = _guard_names.name(_GUARD_SCOPE, "\n".join(content))
        _guards[key] = ReplicaGuard(name, after_update=True, process_set=process_set)
    return _guards[key].step(shared)


@opaque
@documented
def DistributedGradientTape(  # noqa: N802  # Horovod's name
    gradtape: Any,
    *,
    op: Op = Average,
    process_set: ProcessSet | None = None,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a ``tf.GradientTape``: ``gradient()`` gives gradients reduced over all ranks.

    On ranks outside of `process_set` gradients stay as they are. Local sources are the variables of `local_layers` and
    those that are given to the tape's ``register_local_source``.

    Args:
        gradtape: the tape; it may have recorded already.
        op: Average (default), Sum or Adasum.

    Raises:
        UnsupportedError: an argument that is not supported; names it.
    """
    options = GradientOptions.checked(locals(), may_be_adasum=True)
    let_variables_be_called()  # what such scripts broadcast after the first step
    kind = type(gradtape)
    tape: Any = object.__new__(type(kind.__name__, (_TapeMixin, kind), {}))
    tape.__dict__ = gradtape.__dict__  # one recording, whichever of the two objects it is asked of
    tape._tfcollective_options = options
    tape._tfcollective_local = LocalVariables()
    tape._tfcollective_local.add_layers(local_layers)
    return tape
