"""Resumes a training run where it was interrupted: at the same epoch and the same batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._base.log import get_logger
from tfcollective._runtime import Members, ProcessSet
from tfcollective.files import Place, as_place, delete, join
from tfcollective.keras._accumulation import accumulated, accumulators, restore_accumulated
from tfcollective.keras._backup_file import Backup, Layout, Position, layout_of, read_backup, write_backup
from tfcollective.keras._data_place import NOWHERE, DataPlace, SavedPlace
from tfcollective.keras._optimizers import distributed_states, optimizers_of
from tfcollective.keras._replica_state import moving_statistics
from tfcollective.keras._variables import (
    assigned_weights,
    build_optimizer,
    distinct,
    is_built,
    optimizers_variables,
    trained_variables,
)
from tfcollective.tensorflow._functions import barrier
from tfcollective.tensorflow._gradients import variable_key
from tfcollective.tensorflow._objects import allgather_object, broadcast_object
from tfcollective.tensorflow._variables import broadcast_variables

_FILE = "backup.npz"
_BEGIN = "begin.npz"  # the places in the data where an epoch begins, which is known only after its backup
_LOG = get_logger(__name__)


class BackupAndRestore(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not typed
    """Backs a run up while ``fit`` trains; when the same program is started again, it resumes from there.

    Rank 0 writes weights, the state of all optimizers, epoch and batch into one file, and replaces it at once. When
    ``fit`` starts, rank 0 looks for the file and all ranks take what it holds; ``fit`` then begins with that epoch,
    whatever ``initial_epoch`` says. Batches of that epoch that are done already are not trained on; other callbacks see
    their numbers again, with the logs of the last of them. When ``fit`` completes, the file is deleted.

    The state of each rank's ``tf.data`` iterator is saved, so the data go on where they were, whatever shuffles them,
    and nothing is computed for the batches that are done. Where it cannot be saved (a ``map`` that draws random numbers
    or runs Python, generators, ``PyDataset``, Grain, arrays, more than 64 MiB in a shuffle, another number of ranks),
    these batches are read and left out. So a run that was interrupted ends with the weights of one that was not, if the
    place in the data was saved, or an epoch's data come in the same order when the program starts again.

    What is each rank's own is kept for each rank: variables of ``register_local_var``, moving statistics, the states of
    Keras 3's random generators (dropout) and, between two updates, the gradients that several backward passes add up.
    Metrics of the epoch that was interrupted count its remaining batches.

    Args:
        backup_dir: where; only rank 0 uses it, so it need not be shared. May be a URL (``hdfs://``, ``s3://``, ...).
            Give it to one run only.
        save_freq: "epoch", or after how many batches; the end of every epoch is backed up in any case.
        delete_checkpoint: False keeps the file when training completes. The next ``fit`` then has nothing to do.
        process_set: whose ranks train together; all if None. Its first rank is then rank 0 of the above.

    Raises:
        InvalidArgumentError: in ``fit``, on all ranks: the model is not built, or the file does not fit it.
    """

    def __init__(
        self,
        backup_dir: Any,
        save_freq: str | int = "epoch",
        delete_checkpoint: bool = True,
        *,
        process_set: ProcessSet | None = None,
    ) -> None:
        super().__init__()
        self._process_set = process_set
        valid = save_freq == "epoch" or (
            isinstance(save_freq, int) and not isinstance(save_freq, bool) and save_freq > 0
        )
        if not valid:
            raise InvalidArgumentError(f'save_freq: expected "epoch" or a number of batches above 0, got {save_freq!r}')
        if not str(backup_dir):
            raise InvalidArgumentError("backup_dir: expected the name of a directory, got an empty string")
        self._path, self._begin = (join(as_place(backup_dir, "backup_dir"), name) for name in (_FILE, _BEGIN))
        self._every = None if save_freq == "epoch" else int(save_freq)
        self._delete = delete_checkpoint
        self._resumed: Position | None = None
        self._position = Position(0)
        self._saved_batch = 0
        self._place = DataPlace()
        self._saved_place: SavedPlace | None = None  # of the run that resumes, until its first step
        self._logs: dict[str, Any] = {}
        self._passes = 0  # calls of the training function whose batches are done
        self._passing = False
        self._begun = False  # the data of the epoch
        self._start_saved = False  # of the next epoch, without its data
        self._before: _Before | None = None

    @property
    def resumed_from(self) -> tuple[int, int] | None:
        """(epoch, batches done) where the last ``fit`` went on; None: it started from the beginning."""
        return None if self._resumed is None else (self._resumed.epoch, self._resumed.batch)

    @property
    def _members(self) -> Members:
        return runtime.members(self._process_set)

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the backup, if there is one."""
        if not (self.model.built and self.model.weights):
            raise InvalidArgumentError(
                "BackupAndRestore: the model has no variables yet that could be restored: give it an Input layer, "
                "or call model.build(input_shape) before fit"
            )
        build_optimizer(self.model)
        self._forget()
        self._resumed = self._restore()
        _set_initial_epoch(self.model, None if self._resumed is None else self._resumed.epoch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Passes over batches that are done."""
        self._before = _Before(self.model, self._before_step)
        self._position = Position(epoch)
        resumed = self._resumed
        if resumed is not None and resumed.epoch == epoch:
            self._position = resumed
            self._passes, self._passing = resumed.calls, bool(resumed.calls)
        self._begun = False
        self._saved_batch = self._position.batch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Checks that the first batch to train on is the right one."""
        if self._passing and self._passes == 0:
            self._passing = False
            if batch != self._position.batch:
                raise InvalidArgumentError(
                    f"BackupAndRestore: batch {batch} comes after the {self._position.batch} batches that are done: "
                    "steps_per_execution has to be what it was"
                )

    def _before_step(self, iterator: Any) -> dict[str, Any] | None:
        """Returns the logs of a call whose batches are done; None: it trains."""
        if not self._begun:
            self._begin_data(iterator)
        if self._passes:
            self._passes -= 1
            return dict(self._logs)
        return None

    def _begin_data(self, iterator: Any) -> None:
        """Goes to the place from which this rank resumes; where that is known already, it is not saved again."""
        self._begun = True
        if self._saved_place is not None:
            reason = self._place.resume(iterator, self._position.batch, self._saved_place)
            self._saved_place = None
            if reason is not None and self._members.rank == 0:
                _LOG.warning("%d batches that are done were read and left out: %s", self._position.batch, reason)
            return
        self._place.begin(iterator)
        if self._start_saved:
            place = tuple(self._place.save())
            places = allgather_object(place, name="backup/places", process_set=self._process_set)
            if self._members.rank == 0:
                write_backup(self._begin, Backup(self._position, (), [()] * len(places), places=places))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts, and backs up every `save_freq` batches."""
        if self._passing:
            return
        self._position = Position(self._position.epoch, batch + 1, self._position.calls + 1)
        last = self.params.get("steps") is not None and batch + 1 >= self.params["steps"]
        if self._every is not None and not last and batch + 1 - self._saved_batch >= self._every:
            self._saved_batch = batch + 1
            self._save(self._position, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Backs up the end of an epoch."""
        self._passes, self._passing = 0, False
        self._save(Position(epoch + 1))
        self._start_saved = True

    def on_train_end(self, logs: Any = None) -> None:
        """Deletes the backup as soon as all ranks are here: the run is complete."""
        self._forget()
        _set_initial_epoch(self.model, None)
        if self._delete:
            barrier(name="backup/end", process_set=self._process_set)
            if self._members.rank == 0:
                delete(self._path)
                delete(self._begin)

    def _forget(self) -> None:
        if self._before is not None:
            self._before.remove()
        self._before, self._place, self._saved_place = None, DataPlace(), None
        self._passes, self._passing, self._start_saved = 0, False, False

    def _save(self, position: Position, logs: Any = None) -> None:
        shared, variables = _variables(self.model)
        pending = accumulated(self.model)
        own = [*_values(variables), *(value for values in pending.values() for value in values)]
        place = self._place.save() if position.batch else NOWHERE
        everyones = allgather_object((own, tuple(place)), name="backup/own", process_set=self._process_set)
        if self._members.rank == 0:
            counts = {place: len(values) for place, values in pending.items()}
            owns, places = zip(*everyones, strict=True)
            built = _built_for(self.model)
            write_backup(self._path, Backup(position, _values(shared), owns, built, counts, places, _numbers(logs)))

    def _restore(self) -> Position | None:
        found, backup = None, None
        first = self._members.ranks[0]
        if self._members.rank == 0:
            backup, found = _look_for(self._path, self._begin)
        found = broadcast_object(found, root_rank=first, name="backup/found", process_set=self._process_set)
        if isinstance(found, str):
            raise InvalidArgumentError(found)
        if found is None:
            return None
        position, layout, everyones, built, counts, places, self._logs = found
        _build_for(self.model, built)
        shared, own = _variables(self.model)
        _check_layout(self._path, layout, shared)
        with assigned_weights([self.model]):
            if backup is not None:
                _assign(shared, backup.shared)
            broadcast_variables(shared, root_rank=first, process_set=self._process_set)
            self._restore_own(own, everyones, counts)
        other = len(places) != self._members.size
        mine = ("", "the number of ranks was another") if other else places[self._members.rank]
        self._saved_place = SavedPlace(*mine)
        _LOG.info("training resumes at epoch %d after %d batches (%s)", position.epoch, position.batch, self._path)
        return position

    def _restore_own(
        self, own: Sequence[Any], everyones: Sequence[Sequence[Any]], accumulated_counts: Mapping[str, int]
    ) -> None:
        rank, before, size = self._members.rank, len(everyones), self._members.size
        if rank == 0 and before != size:
            _LOG.warning("the backup %s is of %d ranks, now there are %d", self._path, before, size)
        values = iter(everyones[rank % before])
        pending = sum(accumulated_counts.values())
        mine = list(itertools.islice(values, len(everyones[rank % before]) - pending))
        _check_layout(self._path, layout_of(mine), own)
        _assign(own, mine)
        restore_accumulated(
            self.model, {place: list(itertools.islice(values, count)) for place, count in accumulated_counts.items()}
        )


class _Before:
    """Stands in for a model's ``train_function`` until an epoch's first step that trains: `see` is given its iterator,
    and returns the logs of a step that does not."""

    def __init__(self, model: Any, see: Callable[[Any], dict[str, Any] | None]) -> None:
        self._model, self._original, self._see = model, model.train_function, see
        model.train_function = self

    def __call__(self, iterator: Any) -> Any:
        logs = self._see(iterator)
        if logs is not None:
            return logs
        self.remove()
        return self._original(iterator)

    def remove(self) -> None:
        """Gives the model its own function back."""
        if self._model.train_function is self:
            self._model.train_function = self._original


def _numbers(logs: Any) -> Any:
    import numpy as np

    return tf.nest.map_structure(lambda value: np.asarray(value).tolist(), dict(logs or {}))


def _look_for(path: Place, begin: Place) -> tuple[Backup | None, Any]:
    """Rank 0's backup, and what all ranks have to know of it: None, what it holds or what is wrong."""
    try:
        backup = read_backup(path)
        start = read_backup(begin) if backup is not None and not backup.position.batch else None
    except InvalidArgumentError as error:
        return None, str(error)
    if backup is None:
        return None, None
    places = start.places if start is not None and start.position == backup.position else backup.places
    common = (layout_of(backup.shared), backup.own, backup.built, backup.accumulated)
    return backup, (backup.position, *common, places, backup.logs)


def _variables(model: Any) -> tuple[list[Any], list[Any]]:
    """Returns the variables that all ranks share, and those of each rank alone, both without accumulated gradients."""
    local = frozenset[int]().union(*(state.local.keys() for state in distributed_states(model).values()))
    weights = distinct(model.weights)
    known = {variable_key(v) for v in (*weights, *accumulators(model))}
    slots = [v for v in optimizers_variables(model) if variable_key(v) not in known]
    own = [v for v in weights if variable_key(v) in local]
    # The slots of a local variable are local. No optimizer tells whose a slot is, but it has the variable's shape;
    # slots of other variables of that shape are the same on all ranks, and may well be kept once for each.
    shapes = {tuple(v.shape) for v in own}
    own_slots = [v for v in slots if tuple(v.shape) in shapes]
    statistics = [v for v in moving_statistics(model) if variable_key(v) not in local]
    kept = {variable_key(v) for v in (*own, *own_slots, *statistics)}
    shared = [v for v in (*weights, *slots) if variable_key(v) not in kept]
    return shared, [*own, *own_slots, *statistics, *_generators(model)]


def _built_for(model: Any) -> dict[str, list[int]]:
    """Returns the weights that each optimizer of the model was built for, without the optimizer of ``compile``."""
    weights = distinct(model.weights)
    places = {p: trained_variables(o, weights) for p, o in optimizers_of(model).items() if p != "optimizer"}
    return {place: trained for place, trained in places.items() if trained}


def _build_for(model: Any, built: Mapping[str, Sequence[int]]) -> None:
    """Builds the optimizers that a training step has built when the backup was made, and would build only later."""
    weights = distinct(model.weights)
    for place, optimizer in optimizers_of(model).items():
        trained = built.get(place, ())
        if trained and not is_built(optimizer) and max(trained) < len(weights):
            optimizer.build([weights[index] for index in trained])


def _generators(model: Any) -> list[Any]:
    """The states of Keras 3's random generators: variables that are neither weights nor of metrics."""
    others = {variable_key(v) for v in (*model.weights, *getattr(model, "metrics_variables", ()))}
    return [v for v in getattr(model, "variables", ()) if variable_key(v) not in others and _is_number(v)]


def _is_number(variable: Any) -> bool:
    return str(getattr(variable.dtype, "name", variable.dtype)) not in ("string", "resource", "variant")


def _values(variables: Sequence[Any]) -> list[Any]:
    return [tf.convert_to_tensor(variable).numpy() for variable in variables]


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _check_layout(path: Place, layout: Layout, variables: Sequence[Any]) -> None:
    mine = layout_of(variables)
    if mine == layout:
        return
    if len(mine) != len(layout):
        detail = f"it holds {len(layout)} variables, the model and its optimizer have {len(mine)}"
    else:
        index = next(i for i, (theirs, ours) in enumerate(zip(layout, mine, strict=True)) if theirs != ours)
        name = getattr(variables[index], "path", None) or getattr(variables[index], "name", index)
        detail = f"{name} is {layout[index]} there, and {mine[index]} in the model"
    raise InvalidArgumentError(
        f"the backup {path} is of another model or optimizer: {detail}. Delete it to start from the beginning"
    )


class _InitialEpoch:
    """The object that Keras 2 asks where training begins."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(self, *unused: Any, **named: Any) -> tuple[int, int]:
        """(epoch, step): the step stays 0, as the data begin with the epoch's first batch."""
        return self._epoch, 0


def _set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Tells the ``fit`` that is running with which epoch to begin; None: with the one that it was given.

    Keras offers this to its own callback of this kind only, by an attribute of the model.
    """
    if hasattr(model, "_initial_epoch"):  # Keras 3
        model._initial_epoch = epoch
    elif hasattr(model, "_training_state"):  # Keras 2
        model._training_state = None if epoch is None else _InitialEpoch(epoch)
    else:
        raise UnsupportedError("BackupAndRestore: this version of Keras does not let a callback choose the epoch")
