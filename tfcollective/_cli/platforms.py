"""Where a job of ``tfcollective run`` runs: which launcher, and what its options mean on the platform of that.

One entry of :data:`PLATFORMS` for each; the options of a platform stand in a module of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfcollective._base.errors import ConfigError
from tfcollective._cli.cluster_options import SHARED
from tfcollective._cli.groups import GroupedOption, group
from tfcollective._cli.kubernetes_options import KUBERNETES_OPTIONS, kubernetes_platform
from tfcollective._cli.slurm_options import SLURM_OPTIONS, slurm_platform
from tfcollective._cli.spark_options import SPARK_OPTIONS, spark_platform
from tfcollective._cli.values import absolute, words
from tfcollective._cli.yarn_options import YARN_OPTIONS, yarn_platform
from tfcollective._launch.plan.hosts import Host


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


def choose_platform(
    options: Mapping[str, Any], given: Mapping[str, Any], engine: str
) -> tuple[str, dict[str, Any], str]:
    """The launcher for the command line, the settings of its platform, and the end of the error for a job of no size.

    Args:
        options: the values of the command line.
        given: what they say of the job.
        engine: the job's.

    Raises:
        ConfigError: options that do not go together.
    """
    refuse_options_of_others(options["launcher"], options)
    launcher = _launcher_of(options, given, engine)
    chosen = PLATFORMS.get(launcher)
    if chosen is not None:
        return launcher, chosen.settings(options), chosen.else_ranks
    return launcher, _settings_of(launcher, options), ", or hosts with slots: -H host1:4"


def _launcher_of(options: Mapping[str, Any], given: Mapping[str, Any], engine: str) -> str:
    asked = options["launcher"]
    hosts: Sequence[Host] = given.get("hosts", ())
    here = all(host.is_this_machine for host in hosts)
    _refuse_options_of_agents(options)
    if engine == "mpi" or asked == "mpi":
        if engine != "mpi":
            raise ConfigError("--launcher mpi needs --engine mpi, which starts the ranks with mpirun by itself")
        if asked not in (None, "mpi") or options["wait_for_agents"] is not None:
            raise ConfigError("--engine mpi starts the ranks with mpirun: leave out --launcher and --wait-for-agents")
        return "mpi"
    if options["mpi_args"] is not None:
        raise ConfigError("--mpi-args needs --engine mpi")
    if asked == "local" and not here:
        raise ConfigError("--launcher local runs on this machine only: leave out -H and --hostfile")
    if asked == "agents" and options["wait_for_agents"] is None:
        raise ConfigError("--launcher agents needs --wait-for-agents N")
    if given.get("discovery"):
        if asked not in (None, "ssh") or hosts or options["wait_for_agents"] is not None:
            raise ConfigError(
                "--host-discovery-script says which hosts ssh starts agents on: leave out --launcher, -H, --hostfile "
                "and --wait-for-agents"
            )
        return "ssh"
    if asked is not None:
        return str(asked)
    if options["wait_for_agents"] is not None:
        if hosts:
            raise ConfigError("--wait-for-agents starts no agents on hosts: leave out -H and --hostfile")
        return "agents"
    return "local" if here else "ssh"


def _refuse_options_of_agents(options: Mapping[str, Any]) -> None:
    for name in ("port", "key_file") if options["wait_for_agents"] is None else ():
        if options[name]:
            raise ConfigError(f"--{name.replace('_', '-')} needs --wait-for-agents N")


def _settings_of(launcher: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if launcher == "agents":
        key_file = absolute(options["key_file"])
        return {"agents": options["wait_for_agents"], "port": options["port"], "key_file": key_file}
    if launcher not in ("ssh", "mpi"):
        return {}
    return {
        **({"args": words(options, "mpi_args")} if launcher == "mpi" else {}),
        "port": options["ssh_port"],
        "identity_file": options["ssh_identity_file"],
        "options": words(options, "ssh_options"),
        "python": options["remote_python"] or sys.executable,
    }
