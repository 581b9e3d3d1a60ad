"""The GPUs of this machine, and which of them each rank gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import Settings, variable

VISIBLE = "CUDA_VISIBLE_DEVICES"
_SEVERAL_RANKS = "NCCL_MULTI_RANK_GPU_ENABLE"
_NAMES = tuple(variable(field) for field in ("gpus_per_proc", "share_gpus"))
_DRIVER = Path("/proc/driver/nvidia/gpus")  # one directory a GPU; tells the number without loading a library


def visible_gpus(environ: Mapping[str, str], driver: Path = _DRIVER) -> tuple[str, ...]:
    """The GPUs of this node that may be used: as ``CUDA_VISIBLE_DEVICES`` calls them, else their numbers."""
    named = environ.get(VISIBLE)
    if named is None:
        return tuple(str(number) for number in range(len(list(driver.glob("*")))))
    gpus: list[str] = []
    for name in (part.strip() for part in named.split(",")):
        if not name or name.startswith("-"):  # what follows is hidden, too
            break
        gpus.append(name)
    return tuple(gpus)


def gpu_variables(slot: int, slots: int, environ: Mapping[str, str], gpus: Sequence[str]) -> dict[str, str]:
    """Returns the variables that give the rank in this slot of a node its GPUs; none where ranks see them all. Pure.

    Args:
        slot: the rank's place among the node's `slots` ranks.
        environ: what the rank gets otherwise; says how many GPUs a rank has, and whether ranks may share them.
        gpus: the node's.

    Raises:
        ConfigError: the node has too few, and ranks may not share them.
    """
    settings = Settings.load({name: environ[name] for name in _NAMES if name in environ})
    shared = {_SEVERAL_RANKS: "1"} if settings.share_gpus and _SEVERAL_RANKS not in environ else {}
    each = settings.gpus_per_proc
    if not each:
        return shared
    if len(gpus) < each or (len(gpus) < slots * each and not settings.share_gpus):
        raise ConfigError(
            f"{slots} ranks with {each} GPU{'s' if each > 1 else ''} each need {slots * each} GPUs, but this node has "
            f"{len(gpus)}: start fewer ranks, or let them share GPUs with --oversubscribe-gpus"
        )
    mine = [gpus[(slot * each + i) % len(gpus)] for i in range(each)]
    return {**shared, VISIBLE: ",".join(mine)}
