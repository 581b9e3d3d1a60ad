"""The facts that ranks compare when ``fit`` begins, and the advice that follows from them.

Each of these gives numbers that are wrong in silence, or files that ranks take from each other. The ranks compare what
they hold: what looks forgotten may well be right where the ranks differ, as data that the program has divided itself.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfcollective import _runtime as runtime
from tfcollective._base.settings import variable
from tfcollective.keras._variables import layers_of
from tfcollective.keras.callbacks import BestModelCheckpoint
from tfcollective.tensorflow._dataset_order import content_of, left_to_chance
from tfcollective.tensorflow._names import without_numbers

_ROWS = 64  # that are looked at of an array, from its first to its last
_NO_SEED = 87654321  # the result of tf.compat.v1.get_seed if tf.random.set_seed was not called
# Where Keras's callbacks write, by their class; the backup's is another matter: see _backups.
_WRITERS = {"ModelCheckpoint": "filepath", "CSVLogger": "filename", "TensorBoard": "log_dir"}


@dataclass(frozen=True)
class FitPlan:
    """A rank's account of its ``fit``.

    Attributes:
        schedule: (first epoch, end, batches of an epoch or None): epochs are in step where all ranks have the same.
        validation: the number of epochs between validations, as text; None: there are none.
        data: a digest of some rows, where they can be seen.
        seeds: a digest of the states of the model's random numbers; None where it draws none, or they are not set.
        tables: (layer, digest) of vocabularies and of boundaries.
        files: (callback, path) that Keras's callbacks write.
        backup: where Keras's own BackupAndRestore keeps its backup.
        averages: whether moving statistics are averaged; the first rank's setting counts.
        checks: whether ``fit`` gives advice; the first rank's setting counts.
    """

    schedule: tuple[int, int, int | None]
    validation: str | None
    data: str | None
    seeds: str | None
    tables: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    backup: str | None
    averages: bool = True
    checks: bool = True


def plan_of(model: Any, arguments: Mapping[str, Any], callbacks: Sequence[Any], params: Mapping[str, Any]) -> FitPlan:
    """Returns this rank's plan.

    Args:
        model: that trains.
        arguments: of ``fit``, by name.
        callbacks: of ``fit``.
        params: what Keras tells callbacks.
    """
    given = arguments.get("validation_data") is not None or arguments.get("validation_split")
    return FitPlan(
        schedule=(int(arguments.get("initial_epoch") or 0), int(params.get("epochs") or 0), params.get("steps")),
        validation=str(arguments.get("validation_freq", 1)) if given else None,
        data=_data(arguments.get("x"), arguments.get("y")),
        seeds=_seeds(model),
        tables=tuple(_tables(model)),
        files=tuple(_files(callbacks)),
        backup=_backup(callbacks),
        averages=runtime.settings().average_statistics,
        checks=runtime.settings().fit_checks,
    )


def are_in_step(plans: Sequence[FitPlan]) -> bool:
    """True if all ranks begin and end their epochs together."""
    return len({plan.schedule for plan in plans}) == 1


def validate_together(plans: Sequence[FitPlan]) -> bool:
    """True if all ranks validate, after the same epochs."""
    return plans[0].validation is not None and len({plan.validation for plan in plans}) == 1


def advice(plans: Sequence[FitPlan]) -> list[str]:
    """Returns one line for each thing that is probably a mistake.

    Args:
        plans: of all ranks, in their order.
    """
    checks: tuple[Callable[[Sequence[FitPlan]], str | None], ...] = (
        _equal_data,
        _equal_seeds,
        _other_tables,
        _shared_files,
        _backups,
    )
    return [f"fit: {text}. {_SILENCE}" for text in (check(plans) for check in checks) if text is not None]


_SILENCE = f"If it is meant: {variable('fit_checks')}=0 leaves out the checks of fit"


def _same(values: Iterable[str | None]) -> bool:
    distinct = set(values)
    return len(distinct) == 1 and None not in distinct


def _equal_data(plans: Sequence[FitPlan]) -> str | None:
    if not _same(plan.data for plan in plans):
        return None
    return (
        f"all {len(plans)} ranks have the same data, so an epoch trains on each row {len(plans)} times: give every "
        "rank its part, x[rank()::size()] of arrays, or tfcollective.keras.shard(dataset)"
    )


def _equal_seeds(plans: Sequence[FitPlan]) -> str | None:
    if not _same(plan.seeds for plan in plans):
        return None
    return (
        "all ranks have the same seeds, so dropout and augmentation in the model draw the same numbers on all of them: "
        "use set_random_seed(seed + rank()); BroadcastGlobalVariablesCallback(0) makes the initial weights equal"
    )


def _other_tables(plans: Sequence[FitPlan]) -> str | None:
    numbers = [
        number
        for number, tables in enumerate(zip(*(plan.tables for plan in plans), strict=False))
        if len({digest for _, digest in tables}) > 1
    ]
    if not numbers:
        return None
    names = ", ".join(plans[0].tables[number][0] for number in numbers)
    return (
        f"{names}: other vocabularies or boundaries than on other ranks, so ranks number the same words differently: "
        "adapt the layer on rank 0 and give all ranks its table, "
        "layer.set_vocabulary(broadcast_object(layer.get_vocabulary()))"
    )


def _shared_files(plans: Sequence[FitPlan]) -> str | None:
    seen: dict[tuple[str, str], int] = {}
    for plan in plans:
        for entry in set(plan.files):
            seen[entry] = seen.get(entry, 0) + 1
    shared = sorted(entry for entry, count in seen.items() if count > 1)
    if not shared:
        return None
    named = ", ".join(f"{kind} ({path.partition('#')[0]})" for kind, path in shared)
    return (
        f"several ranks write the same file with {named}: pass the callback on rank 0 only (if rank() == 0), or for "
        "checkpoints use tfcollective.keras.BestModelCheckpoint"
    )


def _backups(plans: Sequence[FitPlan]) -> str | None:
    places = [plan.backup for plan in plans]
    if places.count(None) == len(places) or (None not in places and len(set(places)) == len(places)):
        return None
    return (
        "Keras's BackupAndRestore restores the rank that has it: after a restart, ranks would begin in other epochs, "
        "or write one file. Use tfcollective.keras.BackupAndRestore on all ranks"
    )


def _data(x: Any, y: Any) -> str | None:
    if isinstance(x, tf.data.Dataset):
        if tf.get_static_value(x.cardinality()) == tf.data.INFINITE_CARDINALITY and left_to_chance(x) is not None:
            return None  # each rank draws rows of its own: Horovod's repeat().shuffle(), with fewer steps
        content = content_of(x)
        parts = None if content is None else [_digest_of(one) for one in content]
    else:
        parts = [_digest_of(one) for one in tf.nest.flatten((x, y)) if one is not None]
    if not parts or any(part is None for part in parts):
        return None
    return " ".join(str(part) for part in parts)


def _digest_of(value: Any) -> str | None:
    """Returns a digest of some rows of an array; None for what is no array of numbers or text."""
    rows = getattr(value, "iloc", value)  # of pandas
    shape = tuple(getattr(value, "shape", ()) or ())
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor) or not hasattr(value, "shape"):
        return None
    if isinstance(value, tf.Tensor) and value.dtype == tf.variant:  # rows of a dataset that are sparse or ragged
        return None
    if not shape:
        return str(np.asarray(value))
    if not shape[0]:
        return None
    places = sorted({round(place) for place in np.linspace(0, shape[0] - 1, _ROWS)})
    picked = [np.asarray(rows[place]) for place in places]
    content = b"".join(one.tobytes() if one.dtype != object else repr(one.tolist()).encode() for one in picked)
    return f"{shape} {zlib.crc32(content):08x}"


def _seeds(model: Any) -> str | None:
    layers = [layer for layer in (model, *layers_of(model)) if _draws(layer)]
    states = [one.state for layer in layers for one in getattr(layer, "_seed_generators", ())]
    if states:  # Keras 3
        content = b"".join(tf.convert_to_tensor(state).numpy().tobytes() for state in states)
        return f"{zlib.crc32(content):08x}"
    if not any(getattr(layer, "_random_generator", None) is not None for layer in layers):
        return None
    seed = tf.compat.v1.get_seed(0)[0]
    return None if seed == _NO_SEED else str(seed)


def _draws(layer: Any) -> bool:
    """False for a layer that could draw random numbers, but has all its rates at 0."""
    held = [getattr(layer, name, None) for name in ("rate", "dropout", "recurrent_dropout")]
    rates = [rate for rate in held if isinstance(rate, int | float)]
    return any(rates) or not rates


def _tables(model: Any) -> Iterable[tuple[str, str]]:
    layers = tf.keras.layers
    for layer in layers_of(model):
        if isinstance(layer, (layers.TextVectorization, layers.StringLookup, layers.IntegerLookup)):
            table: Any = layer.get_vocabulary()
        elif isinstance(layer, layers.Discretization) and layer.bin_boundaries is not None:
            table = np.asarray(layer.bin_boundaries).tolist()
        else:
            continue
        yield without_numbers(layer.name), f"{zlib.crc32(repr(list(table)).encode()):08x}"


def _files(callbacks: Sequence[Any]) -> Iterable[tuple[str, str]]:
    """Yields the files of Keras's own classes only: a subclass may write on one rank only."""
    for name, attribute in _WRITERS.items():
        kind = getattr(tf.keras.callbacks, name)
        for one in callbacks:
            if type(one) is kind and not isinstance(one, BestModelCheckpoint):
                yield name, _file(getattr(one, attribute))


def _file(path: Any) -> str:
    """A name that two processes have for one file: the same path on the disks of two hosts is none."""
    text = os.fspath(path)
    if "://" in text:
        return text
    whole = Path(os.path.abspath(text))  # noqa: PTH100  # resolve() would follow links that are still to be made
    parent = next(one for one in whole.parents if one.exists())
    return f"{whole}#{parent.stat().st_ino}"


def _backup(callbacks: Sequence[Any]) -> str | None:
    kind = tf.keras.callbacks.BackupAndRestore
    return next((_file(one.backup_dir) for one in callbacks if isinstance(one, kind)), None)
