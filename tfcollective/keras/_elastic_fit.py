"""``fit`` in a job whose ranks come and go.

When the world changes in a step, an error leaves ``fit``: nothing below it could go on with other data, and callbacks
that communicate fail outside of steps, too. So ``Model.fit`` is called again for what is left, in the loop of
:func:`tfcollective.elastic.run`, once for each epoch and world: each call has a dataset of known length. Callbacks do
not see the seams: they are in a list that lives through all calls, and leaves out what they have seen.

The last step of an epoch is committed before the validation, which all ranks share: a rank that is lost meanwhile costs
its part of it. The epoch's end is committed once all ranks have got there: no rank ends one that another has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective import elastic
from tfcollective._base import payload
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._base.log import get_logger
from tfcollective._runtime.communicator import Max
from tfcollective.elastic._sampler import check_global_batch
from tfcollective.keras._backup import BackupAndRestore
from tfcollective.keras._elastic_data import Part, Source, Validation, source_of, validation_of
from tfcollective.keras._global_batch import ShareWeight, steps_per_execution
from tfcollective.keras._optimizers import optimizers_of
from tfcollective.keras._parallel import mode
from tfcollective.keras._parallel.callbacks import CountBatches, stop_together
from tfcollective.keras._progress import FitProgress
from tfcollective.keras._synchronisation import BroadcastGlobalVariablesCallback
from tfcollective.keras._variables import is_built
from tfcollective.keras.elastic import KerasState, learning_rates
from tfcollective.tensorflow._gradients import variable_key
from tfcollective.tensorflow._variables import broadcast_variables

_LOG = get_logger(__name__)
_begun = False  # whether this process has called fit with an Elastic
_GIVEN_BY_US = (
    "x",
    "y",
    "sample_weight",
    "batch_size",
    "shuffle",
    "epochs",
    "initial_epoch",
    "callbacks",
    "verbose",
    "validation_",
)


class Elastic(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Lets ``fit`` continue when ranks are lost or join: ``model.fit(x, epochs=E, callbacks=[tfc.Elastic()])`` in a job
    that runs with ``--min-np``.

    All ranks pass the same data, all of it: `x` is arrays (with `y`, `sample_weight`), a ``tf.data.Dataset``, a
    ``PyDataset``, or a function that takes the number of an epoch and gives its dataset. Each rank trains on its part,
    with batches of the size that is given, and after each change of the world the rest of the epoch is divided again.
    The elements of a dataset, its batches as a rule, must come in the same order on all ranks; up to size - 1 of them
    are left out at the end of an epoch, or so many rows of arrays. Each batch of `validation_data` is evaluated by one
    rank, and all get the results of one process.

    Rank 0's weights are those of all ranks at the start. Ranks that are lost cost the steps since the last commit. A
    rank that joins takes weights, the optimizer's state, the learning rate, the history, epoch and position from the
    others; its other callbacks start from the beginning. If one rank's callback ends training at the end of an epoch,
    all ranks end.

    Args:
        commit_every: after how many batches weights and position are committed. With ``backward_passes_per_step`` a
            multiple of it.
        seed: of the order in which rows of arrays are shuffled, in each epoch another one; the same on all ranks.
        global_batch: how many rows all ranks together take in one step, however many ranks there are, instead of
            ``batch_size``. Each takes its share, by one row more or less where it does not divide, and gradients are
            weighted by the shares: the update is that of the mean over the global batch, so that a learning rate means
            the same in each world. The elements of a dataset are rows then.

    Raises:
        InvalidArgumentError: an argument is not as described; in ``fit``: the ranks have different data, or a dataset
            whose order may differ.
        UnsupportedError: in ``fit``: data that cannot be divided, ``BackupAndRestore``, a second ``fit`` with this
            callback in an elastic job, or what `global_batch` has no meaning for.
    """

    def __init__(self, commit_every: int = 1, seed: int = 0, global_batch: int | None = None) -> None:
        super().__init__()
        if isinstance(commit_every, bool) or not isinstance(commit_every, int) or commit_every < 1:
            raise InvalidArgumentError(f"commit_every: expected a number of batches above 0, got {commit_every!r}")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InvalidArgumentError(f"seed: expected 0 or more, got {seed!r}")
        if global_batch is not None:
            check_global_batch(global_batch)
        self.global_batch = global_batch
        self.commit_every = commit_every
        self.seed = seed
        self._in_fit = False
        self._progress = FitProgress()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch, for ``tfcollective status``."""
        self._progress.begin_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Publishes the step now and then, for ``tfcollective status``."""
        self._progress.step(self, logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Publishes the last step, for ``tfcollective status``."""
        self._progress.step(self, logs, last=True)

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks that ``fit`` is one that knows of this callback."""
        if not self._in_fit:
            raise UnsupportedError(
                "Elastic: this fit is not that of tf.keras.Model, which it has to be: use tfcollective.elastic.run "
                "with a KerasState around a training loop"
            )


def elastic_callback(callbacks: Any) -> Elastic | None:
    """Returns the :class:`Elastic` among the callbacks of ``fit``, or None."""
    if isinstance(callbacks, tf.keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return next((one for one in tf.nest.flatten(callbacks) if isinstance(one, Elastic)), None)


def fit_elastically(
    fit: Callable[..., Any],
    model: Any,
    arguments: Mapping[str, Any],
    options: Elastic,
    average: Callable[[str], None],
) -> Any:
    """Runs ``fit`` with an :class:`Elastic` among its callbacks; returns the history.

    Args:
        fit: Keras's own.
        model: whose.
        arguments: all of ``fit``, by name, but the model.
        options: the callback.
        average: makes moving statistics equal on all ranks, which all call it; its argument says when.
    """
    global _begun
    if _begun and runtime.settings().elastic:
        raise UnsupportedError(
            "Elastic: this program has called fit with it before: a rank that joins later could not know in which call "
            "the others are. Train in one call, or with tfcollective.elastic.run"
        )
    callbacks = _checked(arguments["callbacks"])
    source = source_of(arguments, options.seed, options.global_batch or 0)
    validation = validation_of(arguments)
    _build(model, source)
    _check_optimizers(model)
    weight = None if options.global_batch is None else ShareWeight(model)
    first = int(arguments["initial_epoch"])
    data = f"{source.fingerprint()}{f' global batch {options.global_batch}' if options.global_batch else ''}"
    data += f" validation {validation.fingerprint()}" if validation is not None else ""
    state = KerasState(model, epoch=first, batch=0, done=0, steps=0, logs=None, stopped=False, history=b"", data=data)
    training = _Training(fit, model, arguments, source, validation, state, weight, average)
    options._in_fit = _begun = True
    try:
        if runtime.current().newcomer:
            training.rehearse()
        training.callbacks = _Callbacks(callbacks, training, options.commit_every)
        training.callbacks.begin()
        elastic.run(lambda _: training.go_on())(state)
    finally:
        options._in_fit = False
        if weight is not None:
            weight.assign(1.0)
    return model.history


def _checked(callbacks: Any) -> list[Any]:
    if isinstance(callbacks, tf.keras.callbacks.CallbackList):
        raise UnsupportedError("callbacks: with Elastic pass a list of callbacks, not a CallbackList")
    listed = tf.nest.flatten(callbacks)
    if any(isinstance(one, BackupAndRestore) for one in listed):
        raise UnsupportedError(
            "BackupAndRestore counts the batches of a fixed number of ranks: with Elastic use ModelCheckpoint for files"
        )
    # Ranks that join would broadcast alone; all ranks take the weights of one in any case.
    return [one for one in listed if not isinstance(one, BroadcastGlobalVariablesCallback)]


def _build(model: Any, source: Source) -> None:
    """Makes the weights, from the first batch if need be: the state keeps them from the start."""
    if model.built and model.weights:
        return
    for element in source.part(0, 0, 0, 1).dataset.take(1):
        model(element[0] if isinstance(element, tuple) else element, training=False)


def _check_optimizers(model: Any) -> None:
    for place, optimizer in optimizers_of(model).items():
        if place != "optimizer" and not is_built(optimizer):
            raise InvalidArgumentError(
                f"{place}: this optimizer is not built yet, so it has no variables to keep: call its build(variables) "
                "before fit"
            )


class _Training:
    """A ``fit`` of the user's, which is many of Keras's.

    The state's values: `epoch`; `batch`, how many steps of the epoch are done, in all worlds; `done`, how many elements
    of it; `steps` of all epochs; `logs` of an epoch whose steps are all done, else None; `stopped` by a callback;
    `history`, what Keras's History holds, in bytes, of which a commit makes no copy; `data`, the source's fingerprint.
    """

    callbacks: _Callbacks

    def __init__(
        self,
        fit: Callable[..., Any],
        model: Any,
        arguments: Mapping[str, Any],
        source: Source,
        validation: Validation | None,
        state: Any,
        weight: ShareWeight | None,
        average: Callable[[str], None],
    ) -> None:
        self._fit = fit
        self.average = average
        self._weight = weight
        self._source, self._data = source, state.data
        self._kept = {name: value for name, value in arguments.items() if not name.startswith(_GIVEN_BY_US)}
        self.validation = validation
        self.model = model
        self.epochs = int(arguments["epochs"])
        self.verbose = 1 if arguments["verbose"] == "auto" else arguments["verbose"]
        self.state = state
        self.part = source.part(state.epoch, 0, runtime.rank(), runtime.size())

    def rehearse(self) -> None:
        """Makes a step on this process's own and takes it back: it is traced and compiled while the others train, who
        would stand still for that in their first step together."""
        few = self.part.dataset.take(steps_per_execution(self.model))
        given = {"x": few, "epochs": 1, "shuffle": False, "callbacks": [], "verbose": 0}
        self.begin_step(0)
        self._fit(self.model, **given, **self._kept)
        self.state.restore()

    def begin_step(self, step: int) -> None:
        """A step of the present part begins: this rank's share of it may be another one than before."""
        if self._weight is not None:
            self._weight.assign(self.part.division.weight(step))

    def go_on(self) -> None:
        """Trains from the state's position to the end."""
        if self.state.data != self._data:
            raise InvalidArgumentError(
                f"x: the ranks' data differ: {self._data} here, {self.state.data} on another rank. With Elastic all "
                "ranks pass all of the data, in the same order"
            )
        self.callbacks.resume()
        with _not_finalized(self.model):
            while self.state.epoch < self.epochs and not self.state.stopped:
                if self.state.logs is None:
                    self._epoch()
                else:
                    self.callbacks.resume_end(self.state.epoch)
        if hasattr(self.model.optimizer, "finalize_variable_values"):  # Keras 2's legacy optimizers have no such end
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)
        self.callbacks.end()

    def _epoch(self) -> None:
        """Trains what is left of the state's epoch."""
        epoch, rank, size = self.state.epoch, runtime.rank(), runtime.size()
        self.part = self._source.part(epoch, self.state.done, rank, size)
        self.callbacks.begin_part(self.part)
        given = {"x": self.part.dataset, "epochs": epoch + 1, "initial_epoch": epoch, "shuffle": False}
        self._fit(self.model, **given, callbacks=self.callbacks, verbose=self.verbose, **self._kept)
        if self.state.epoch == epoch:
            raise InvalidArgumentError(f"x: the data of epoch {epoch} have fewer elements than they say")


@contextmanager
def _not_finalized(model: Any) -> Iterator[None]:
    """Keeps Keras's ``fit`` from replacing the weights by an optimizer's averages at its end, which is not the end of
    training."""
    optimizer = model.optimizer
    if not hasattr(optimizer, "finalize_variable_values"):
        yield
        return
    object.__setattr__(optimizer, "finalize_variable_values", lambda *_: None)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "finalize_variable_values")


class _Callbacks(tf.keras.callbacks.CallbackList):  # type: ignore[misc]  # Keras is not typed
    """The user's callbacks, over all calls of Keras's ``fit``: training begins and ends once for them, an epoch begins
    once, and its batches are counted over all worlds. Commits after them."""

    def __init__(self, callbacks: list[Any], training: _Training, commit_every: int) -> None:
        self._training = training
        self._state = training.state
        self._every = commit_every
        self._committed = 0  # steps of this part that are
        self._epoch_begun = -1
        self._metrics: list[tuple[Any, Any]] = []  # this rank's, of the epoch, as of the last commit
        self._logs: dict[str, Any] = {}  # this rank's, of an epoch whose steps are all done
        super().__init__(
            [CountBatches(), *callbacks, *stop_together(callbacks)],
            add_history=True,
            add_progbar=training.verbose != 0,
            model=training.model,
            verbose=training.verbose,
            epochs=training.epochs,
            steps=training.part.steps,
        )
        (self._kept_history,) = (one for one in self.callbacks if isinstance(one, tf.keras.callbacks.History))

    def begin(self) -> None:
        """Training begins, in this process."""
        super().on_train_begin()

    def resume(self) -> None:
        """Training resumes at the state's position."""
        kept = self._state.history
        self._kept_history.history, self._kept_history.epoch = payload.loads(kept) if kept else ({}, [])

    def begin_part(self, part: Part) -> None:
        """Keras's ``fit`` is called for what is left of an epoch."""
        self._committed = 0
        training = self._training
        steps = self._state.batch + part.steps
        self.set_params({"verbose": training.verbose, "epochs": training.epochs, "steps": steps})

    def end(self) -> None:
        """Training ends."""
        super().on_train_end({name: values[-1] for name, values in self._kept_history.history.items() if values})

    def on_train_begin(self, logs: Any = None) -> None:
        """Keras's ``fit`` begins: Keras 2 counts steps from 0 then."""
        counter: Any = getattr(self._training.model, "_train_counter", None)
        if counter is not None:
            counter.assign(self._state.steps)

    def on_train_end(self, logs: Any = None) -> None:
        """Keras's ``fit`` ends."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch begins, or resumes: then with the metrics that it had."""
        if self._state.batch:
            for variable, value in self._metrics:
                variable.assign(value)
        if self._epoch_begun != epoch:
            self._epoch_begun = epoch
            super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Calls the user's callbacks with the batch's number in the epoch."""
        self._training.begin_step(batch)
        super().on_train_batch_begin(batch + self._state.batch - self._committed, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits if it is time. The last step of an epoch is committed with the epoch's end."""
        super().on_train_batch_end(batch + self._state.batch - self._committed, logs)
        steps = batch + 1
        if steps < self._training.part.steps and steps - self._committed >= self._every:
            self._commit(steps)

    def _commit(self, steps: int) -> None:
        """Commits so many steps of the part."""
        new, self._committed = steps - self._committed, steps
        self._state.batch += new
        self._state.steps += new
        self._state.done = self._training.part.division.after(steps)
        self._metrics = [(variable, tf.convert_to_tensor(variable)) for variable in _metrics_of(self._training.model)]
        self._state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The steps of an epoch are done: commits them, and ends it."""
        self._training.average(f"epoch {epoch}")
        self._logs = dict(logs or {})
        self._state.logs = self._logs
        self._commit(self._training.part.steps)
        self._end_epoch(epoch)

    def resume_end(self, epoch: int) -> None:
        """The world has changed after the steps of an epoch: ends it. The metrics of a rank count what it has trained
        on, nothing where it has just joined."""
        self._training.model.reset_metrics()
        self.on_epoch_begin(epoch)
        self._end_epoch(epoch)

    def _end_epoch(self, epoch: int) -> None:
        """Validates, and waits for all ranks before one commits the epoch's end; they agree on whether it was the
        last.
        """
        model, state, validation = self._training.model, self._state, self._training.validation
        counted = {name: value for name, value in model.get_metrics_result().items() if name in state.logs}
        logs = {**state.logs, **_as_numbers(counted), **self._logs}
        if validation is not None and validation.is_due(epoch):
            with mode.divided():
                found = model.evaluate(**validation.arguments, callbacks=self, return_dict=True)
            logs |= {f"val_{name}": value for name, value in found.items()}
        super().on_epoch_end(epoch, logs)
        stop = runtime.get_communicator().allreduce(_flag(model.stop_training), Max, name="elastic/stop")
        # A rank that has joined has callbacks that know less of the past. Rank 0 is one that was there.
        broadcast_variables(learning_rates([model], []))
        state.stopped = bool(stop)
        state.epoch, state.batch, state.done, state.logs = epoch + 1, 0, 0, None
        state.history = payload.dumps((self._kept_history.history, self._kept_history.epoch), "the history")
        self._metrics, self._logs = [], {}
        state.commit()


def _flag(value: Any) -> Any:
    import numpy as np

    return np.array(bool(value), np.int64)


def _as_numbers(results: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: tf.convert_to_tensor(value).numpy() for name, value in results.items()}
    return {name: value.item() if value.ndim == 0 else value for name, value in values.items()}


def _metrics_of(model: Any) -> list[Any]:
    """The variables of the metrics, each once."""
    return list({variable_key(v): v for metric in model.metrics for v in metric.variables}.values())
