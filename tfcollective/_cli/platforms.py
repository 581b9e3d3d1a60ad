"""What ``tfcollective run`` has for each cluster: the options that it takes, and the settings that they mean.

One entry of :data:`PLATFORMS` for each; the options of a platform stand in a module of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfcollective._base.errors import ConfigError
from tfcollective._cli.cluster_options import SHARED
from tfcollective._cli.groups import GroupedOption, group
from tfcollective._cli.kubernetes_options import KUBERNETES_OPTIONS, kubernetes_platform
from tfcollective._cli.slurm_options import SLURM_OPTIONS, slurm_platform
from tfcollective._cli.spark_options import SPARK_OPTIONS, spark_platform
from tfcollective._cli.yarn_options import YARN_OPTIONS, yarn_platform


@dataclass(frozen=True)
class Platform:
    """One cluster on the command line.

    Attributes:
        title: the heading of its options in the help.
        options: all that it takes: its own, and some of ``cluster_options``.
        settings: what they mean, as :attr:`JobSpec.platform`.
        else_ranks: how a job can do without a given number of ranks, as the end of the error that asks for it.
    """

    title: str
    options: tuple[GroupedOption, ...]
    settings: Callable[[Mapping[str, Any]], dict[str, Any]]
    else_ranks: str = ""


_IN_ALLOCATION = ", or run this in an allocation of salloc or sbatch, whose tasks are then the ranks"
PLATFORMS: Mapping[str, Platform] = {
    "kubernetes": Platform("Kubernetes", KUBERNETES_OPTIONS, kubernetes_platform),
    "slurm": Platform("SLURM", SLURM_OPTIONS, slurm_platform, _IN_ALLOCATION),
    "spark": Platform("Spark", SPARK_OPTIONS, spark_platform),
    "yarn": Platform("YARN", YARN_OPTIONS, yarn_platform),
}
#: Those whose ranks run what is in an image, which cannot be looked at from here.
RUNS_IMAGES = frozenset({"kubernetes"})


def cluster_options() -> tuple[GroupedOption, ...]:
    """Every option of every cluster once, under its heading."""
    own = [group(one.title, *(each for each in one.options if each not in SHARED)) for one in PLATFORMS.values()]
    return (*group("Clusters", *SHARED), *(each for options in own for each in options))


def refuse_options_of_others(launcher: str | None, options: Mapping[str, Any]) -> None:
    """Raises ConfigError when an option is given that this launcher does not take, but a cluster does."""
    chosen = PLATFORMS.get(launcher or "")
    takes = chosen.options if chosen is not None else ()
    for one in cluster_options():
        if one not in takes and options[str(one.name)] not in (None, (), False):
            *others, last = (name for name, platform in PLATFORMS.items() if one in platform.options)
            others = [", ".join(others), last] if others else [last]
            raise ConfigError(f"{' or '.join(one.opts)} needs --launcher {' or '.join(others)}")
