"""States that keep TensorFlow's variables over changes of the world, and data that are then divided again; see
:mod:`tfcollective.elastic`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._runtime.communicator import Min
from tfcollective.elastic import (
    ElasticSampler,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    run,
)
from tfcollective.tensorflow._variables import broadcast_variables, tensorflow_variable

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowState",
    "elastic_dataset",
    "run",
]


class TensorFlowState(ObjectState):
    """Variables, and values by name; see :class:`ObjectState`.

    Saving keeps the variables' buffers, about 2 us a variable. TensorFlow copies them when variables are changed in
    place; with Keras's optimizers, whose updates make new buffers in an elastic job, nothing is copied.

    Args:
        variables: TensorFlow's or Keras's; the same list, in the same order, on all ranks.
        session: Horovod's for v1 graphs, which are not supported: None.
        values: see :class:`ObjectState`.

    Raises:
        UnsupportedError: `session` was given.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: None = None, **values: Any) -> None:
        if session is not None:
            raise UnsupportedError("session: elastic states are for programs that run eagerly or in a tf.function")
        self._variables = list(variables or ())
        self._kept: Callable[[], list[Any]] = list
        self._hold: Callable[[], Callable[[], list[Any]]] | None = None  # made by the first commit
        super().__init__(**values)
        TensorFlowState.save(self)

    def save(self) -> None:
        """Saves the state. A failure leaves what was saved before, of variables and of values."""
        if self._hold is None:
            self._hold = _holder(self._variables)
        kept = self._hold()
        super().save()
        self._kept = kept

    def restore(self) -> None:
        """See :class:`State`."""
        super().restore()
        for variable, kept in zip(self._variables, self._kept(), strict=True):
            variable.assign(kept)

    def on_reset(self) -> None:
        """Runs the reset callbacks. The ranks sync what the callbacks assign to variables."""
        super().on_reset()
        self._keep_what_callbacks_assigned()

    def _keep_what_callbacks_assigned(self) -> None:
        self._keep_values(range(len(self._variables)))

    def _keep_values(self, places: Iterable[int]) -> None:
        """Has :meth:`restore` give the variables at these places the values of now."""
        values = list(self._kept())
        for place in places:
            values[place] = tf.convert_to_tensor(self._variables[place])
        self._kept = lambda: values

    def take(self, root: int) -> None:
        """Takes the root's state. The saved state stays until all of it has come: a rank that is lost meanwhile leaves
        nothing half taken.
        """
        super().take(root)  # on the root the variables are those of its commit now
        broadcast_variables(self._variables, root_rank=root)
        self.save()


def _holder(variables: Sequence[Any]) -> Callable[[], Callable[[], list[Any]]]:
    """Returns a function that holds the buffers of all variables, and returns a getter of their values, in order.

    One traced function reads them, as each eager read takes 20 us more. They stay in an Optional a device: objects of
    Python for all of them take as long as reading them.
    """
    held = [tensorflow_variable(variable) for variable in variables]
    places: dict[str, list[int]] = {}
    for place, variable in enumerate(held):
        places.setdefault(variable.device, []).append(place)

    def read() -> list[Any]:
        return [_on_device(device, [held[place] for place in own]) for device, own in places.items()]

    hold: Callable[[], Sequence[Any]] = tf.function(read, autograph=False).get_concrete_function()

    def values(kept: Sequence[Any]) -> list[Any]:
        found: dict[int, Any] = {}
        for own, buffers in zip(places.values(), kept, strict=True):
            found.update(zip(own, buffers.get_value(), strict=True))
        return [found[place] for place in range(len(held))]

    return lambda: partial(values, hold())


def _on_device(device: str, variables: Sequence[Any]) -> Any:
    """An Optional of the values of variables that are on this device, of which nothing is copied."""
    with tf.device(device):
        return tf.experimental.Optional.from_value(tuple(tf.convert_to_tensor(variable) for variable in variables))


class ElasticDataset:
    """See :func:`elastic_dataset`."""

    def __init__(self, build: Callable[[int, int, int], Any], state: Any, batch_size: int) -> None:
        self._build = build
        self._state = state
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of this epoch, equally many on all ranks, which all begin together.

        Raises:
            InvalidArgumentError: `build` gave no ``tf.data.Dataset``.
        """
        size = runtime.size()
        dataset = self._build(runtime.rank(), size, self._state.done)
        if not isinstance(dataset, tf.data.Dataset):
            raise InvalidArgumentError(f"build: expected a tf.data.Dataset from it, got {type(dataset).__name__}")
        for batch in _equally_many(dataset):
            self._state.done += size * self._batch_size
            yield batch


def elastic_dataset(build: Callable[[int, int, int], Any], state: Any, batch_size: int = 1) -> ElasticDataset:
    """Batches of a dataset that is rebuilt for each world, from where the ranks are in the epoch.

    As an example::

        def build(rank, size, done):
            return files.skip(done).shard(size, rank).map(read).batch(32).prefetch(2)

        state = tfc.elastic.TensorFlowState(variables, epoch=0, done=0)
        data = tfc.elastic.elastic_dataset(build, state, batch_size=32)

        @tfc.elastic.run
        def train(state):
            while state.epoch < 10:
                for batch in data:
                    step(batch)
                    state.commit()
                state.epoch, state.done = state.epoch + 1, 0

    ``state.done`` grows by ``size * batch_size`` with each batch that is handed out, so the commit after its step
    includes it; what is only prefetched does not count. When a rank is lost, the dataset is rebuilt from the last
    commit. The ranks agree on how many batches there are: the epoch ends for all when one has none left.

    Args:
        build: makes the dataset of a rank: (rank, size, done), done being the number of elements, from the beginning of
            the epoch, that all ranks together have taken. It must begin behind them, and divide what is left. `done`
            may be more than there is.
        state: has a value ``done``, 0 at the beginning of an epoch.
        batch_size: how many elements one batch takes.

    Returns:
        An iterable; each time that it is begun it builds the dataset.

    Raises:
        InvalidArgumentError: `state` has no value ``done``, or `batch_size` is below 1.
    """
    if not isinstance(getattr(state, "done", None), int):
        raise InvalidArgumentError("state: expected one with a number done=0 among its values")
    if batch_size < 1:
        raise InvalidArgumentError(f"batch_size: expected 1 or more, got {batch_size}")
    return ElasticDataset(build, state, batch_size)


def _equally_many(dataset: Any) -> Iterator[Any]:
    """The elements, as many as the rank with the fewest has."""
    count = _least(int(dataset.cardinality()))
    if count >= 0:
        yield from dataset.take(count)
        return
    # One of the ranks does not know its number (or has no end): they ask each other in each step.
    iterator = iter(dataset)
    while True:
        element = iterator.get_next_as_optional()
        if not _least(int(element.has_value())):
            return
        yield element.get_value()


def _least(value: int) -> int:
    import numpy as np

    return int(runtime.get_communicator().allreduce(np.array(value, np.int64), Min, name="elastic/data"))
