"""What ``tfcollective run`` has for each cluster: the options that it takes, and the settings that they mean.

One entry of :data:`PLATFORMS` for each; the options of a platform stand in a module of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfcollective.cli.cluster_options import SHARED
from tfcollective.cli.groups import GroupedOption, group
from tfcollective.cli.yarn_options import YARN_OPTIONS, yarn_platform
from tfcollective.errors import ConfigError


@dataclass(frozen=True)
class Platform:
    """One cluster on the command line.

    Attributes:
        title: the heading of its options in the help.
        options: all that it takes: its own, and some of ``cluster_options``.
        settings: what they mean, as :attr:`JobSpec.platform`.
    """

    title: str
    options: tuple[GroupedOption, ...]
    settings: Callable[[Mapping[str, Any]], dict[str, Any]]


PLATFORMS: Mapping[str, Platform] = {"yarn": Platform("YARN", YARN_OPTIONS, yarn_platform)}


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
            others = [name for name, platform in PLATFORMS.items() if one in platform.options]
            raise ConfigError(f"{one.opts[0]} needs --launcher {' or '.join(others)}")
