"""Which GPUs of a node each of its ranks gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfcollective.errors import ConfigError
from tfcollective.launch.system.gpus import VISIBLE
from tfcollective.settings import Settings, variable

__all__ = ["gpu_variables"]

_SEVERAL_RANKS = "NCCL_MULTI_RANK_GPU_ENABLE"


def gpu_variables(slot: int, slots: int, environ: Mapping[str, str], gpus: Sequence[str]) -> dict[str, str]:
    """What gives the rank in this slot of a node its GPUs; nothing where ranks see them all. Pure.

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


_NAMES = tuple(variable(field) for field in ("gpus_per_proc", "share_gpus"))
