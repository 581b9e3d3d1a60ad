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
from tfcollective.keras._shared_rows import of_batches, of_own_data
from tfcollective.keras._variables import layers_of
from tfcollective.keras.callbacks import BestModelCheckpoint
from tfcollective.tensorflow._dataset_order import batch_size_of, content_of, left_to_chance
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
        elements: the structure and the types of a batch; None where its rows are not sampled.
        batch_size: in rows; None where it is not known.
        text: whether the data hold text. It may name files, of which ranks may have copies of their own.
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
    elements: str | None = None
    batch_size: int | None = None
    text: bool = False
    averages: bool = True
    checks: bool = True


def plan_of(
    model: Any,
    arguments: Mapping[str, Any],
    callbacks: Sequence[Any],
    params: Mapping[str, Any],
    elements: str | None = None,
) -> FitPlan:
    """Returns this rank's plan.

    Args:
        model: that trains.
        arguments: of ``fit``, by name.
        callbacks: of ``fit``.
        params: what Keras tells callbacks.
        elements: see ``FitPlan``.
    """
    given = arguments.get("validation_data") is not None or arguments.get("validation_split")
    content = _content(arguments.get("x"), arguments.get("y"))
    return FitPlan(
        schedule=(int(arguments.get("initial_epoch") or 0), int(params.get("epochs") or 0), params.get("steps")),
        validation=str(arguments.get("validation_freq", 1)) if given else None,
        data=_digest(content),
        seeds=_seeds(model),
        tables=tuple(_tables(model)),
        files=tuple(_files(callbacks)),
        backup=_backup(callbacks),
        elements=elements,
        batch_size=_batch_size(arguments),
        text=any(tf.string == getattr(one, "dtype", None) for one in content),
        averages=runtime.settings().average_statistics,
        checks=runtime.settings().fit_checks,
    )


def are_in_step(plans: Sequence[FitPlan]) -> bool:
    """True if all ranks begin and end their epochs together."""
    return len({plan.schedule for plan in plans}) == 1


def validate_together(plans: Sequence[FitPlan]) -> bool:
    """True if all ranks validate, after the same epochs."""
    return plans[0].validation is not None and len({plan.validation for plan in plans}) == 1


def compare_rows(plans: Sequence[FitPlan], *, slices: bool) -> bool:
    """True if ranks sample their rows, and there is no advice on their data already.

    Args:
        plans: of all ranks.
        slices: see ``advice``.
    """
    check = _other_data if slices else _equal_data
    return any(plan.elements is not None for plan in plans) and check(plans) is None


def advice(plans: Sequence[FitPlan], *, divides: bool = False, slices: bool = False) -> list[str]:
    """Returns one line for each thing that is probably a mistake.

    Args:
        plans: of all ranks, in their order.
        divides: ``fit`` divides the work by itself: rank 0 alone writes, and ranks draw random numbers of their own.
        slices: all ranks read the same batches, of which they take slices.
    """
    checks: tuple[Callable[[Sequence[FitPlan]], str | None], ...] = (
        _other_data if slices else _equal_data,
        _other_steps,
        _other_elements,
        _other_batch_sizes,
        _other_tables,
        *(() if divides else (_equal_seeds, _shared_files, _backups)),
    )
    return [f"fit: {text}. {_SILENCE}" for text in (check(plans) for check in checks) if text is not None]


def undivided_rows(samples: Sequence[Any], ranks: Sequence[int], *, slices: bool) -> str | None:
    """Returns a line if ranks have trained on the same rows; see ``_shared_rows``.

    Args:
        samples: of all ranks, see ``RowSample.end``.
        ranks: their numbers.
        slices: see ``advice``.
    """
    found = of_batches(samples) if slices else of_own_data(samples)
    if not found:
        return None
    first, second = (ranks[place] for place in found[0].ranks)
    share = (
        f"of a sample of {found[0].rows} rows that rank {first} trained on in the first epoch, rank {second} trained "
        f"on {found[0].found:.0%}, too"
    )
    if slices:
        text = (
            f"ranks read the data in different orders, so that their slices of a batch overlap: {share}, and other "
            "rows were trained on by no rank. Give all ranks one order: sort what os.listdir and glob return, and seed "
            "generators of the script's own, such as random.Random()"
        )
    else:
        named = sorted({ranks[place] for one in found for place in one.ranks})
        text = f"ranks {', '.join(map(str, named))} have trained on the same rows: {share}. {_GIVE_PARTS}"
    return f"fit: {text}. {_SILENCE}"


_SILENCE = f"If it is meant: {variable('fit_checks')}=0 leaves out the checks of fit"
_GIVE_PARTS = "Give every rank its part, x[rank()::size()] of arrays, or tfcollective.keras.shard(dataset)"


def _same(values: Iterable[str | None]) -> bool:
    distinct = set(values)
    return len(distinct) == 1 and None not in distinct


def _equal_data(plans: Sequence[FitPlan]) -> str | None:
    if not _same(plan.data for plan in plans):
        return None
    return (
        f"all {len(plans)} ranks have the same data, so an epoch trains on each row {len(plans)} times. {_GIVE_PARTS}"
    )


def _other_data(plans: Sequence[FitPlan]) -> str | None:
    if len({plan.data for plan in plans} - {None}) < 2:
        return None
    if any(plan.text and plan.elements is not None for plan in plans):
        return None  # the rows themselves are compared after the first epoch
    return (
        "ranks have different data, and each trains on a slice of its batches, so that other rows are trained on by no "
        "rank: give all ranks the same data, or pass DataParallel(auto_shard_dataset=False)"
    )


def _other_steps(plans: Sequence[FitPlan]) -> str | None:
    epochs = _differing([(plan.schedule[0], plan.schedule[1]) for plan in plans], "epochs {0[0]} to {0[1]}")
    batches = _differing([plan.schedule[2] for plan in plans], "{0} batches in an epoch")
    if epochs is None and batches is None:
        return None
    return (
        f"{epochs or batches}: training fails when the first rank ends, as the others wait for its gradients. Pass the "
        "same epochs and steps_per_epoch on all ranks, or divide the data with tfcollective.keras.shard(dataset), "
        "which gives all ranks equally many rows"
    )


def _other_elements(plans: Sequence[FitPlan]) -> str | None:
    found = _differing([plan.elements for plan in plans], "batches of {0}")
    return None if found is None else f"{found}: give all ranks data of one structure and type"


def _other_batch_sizes(plans: Sequence[FitPlan]) -> str | None:
    found = _differing([plan.batch_size for plan in plans], "batches of {0} rows")
    if found is None:
        return None
    return f"{found}: gradients are averaged over the ranks, so that a row of a smaller batch counts more"


def _differing(values: Sequence[Any], text: str) -> str | None:
    """Names the first two ranks whose values differ; None if all known values are equal."""
    known = [(rank, value) for rank, value in enumerate(values) if value is not None]
    other = next(((rank, value) for rank, value in known if value != known[0][1]), None)
    if other is None:
        return None
    (first, mine), (second, theirs) = known[0], other
    return f"ranks differ: {text.format(mine)} on rank {first}, {text.format(theirs)} on rank {second}"


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


def _batch_size(arguments: Mapping[str, Any]) -> int | None:
    x, given = arguments.get("x"), arguments.get("batch_size")
    if isinstance(x, tf.data.Dataset):
        return batch_size_of(x)
    return given if isinstance(given, int) else None


def _content(x: Any, y: Any) -> list[Any]:
    """What distinguishes the data from those of another rank; empty where it cannot be seen."""
    if not isinstance(x, tf.data.Dataset):
        return [one for one in tf.nest.flatten((x, y)) if one is not None]
    if tf.get_static_value(x.cardinality()) == tf.data.INFINITE_CARDINALITY and left_to_chance(x) is not None:
        return []  # each rank draws rows of its own: Horovod's repeat().shuffle(), with fewer steps
    return content_of(x) or []


def _digest(content: Sequence[Any]) -> str | None:
    parts = [_digest_of(one) for one in content]
    return None if not parts or None in parts else " ".join(map(str, parts))


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
    # A row of a tensor costs as much as all of them together.
    picked = (
        [tf.gather(value, places).numpy()]
        if isinstance(value, tf.Tensor)
        else [np.asarray(rows[place]) for place in places]
    )
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
