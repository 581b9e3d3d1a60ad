"""The platform of a ``tfcollective run`` job: its launcher, and that launcher's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfcollective._base.errors import ConfigError
from tfcollective._base.options import HEADINGS, MANIFESTS, options_of
from tfcollective._cli.groups import DeclaredOption
from tfcollective._launch.launcher import find_launcher, options_by_launcher
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.spec import OPTIONS

#: Those whose ranks run what is in an image, which cannot be looked at from here.
RUNS_IMAGES = frozenset({"kubernetes"})


def _made() -> dict[str, dict[str, DeclaredOption]]:
    """Options of several platforms that are spelt alike are one option of the command line. One that would take a flag
    of another is none."""
    made: dict[tuple[str, ...], DeclaredOption] = {}
    taken = {flag for one in OPTIONS.values() for flag in one.flags}
    found: dict[str, dict[str, DeclaredOption]] = {}
    for name, kind in options_by_launcher().items():
        options = options_of(kind)
        for one in options.values():
            if one.flags and taken.isdisjoint(one.flags):
                made[one.flags] = DeclaredOption(one)
                taken.update(one.flags)
        found[name] = {field: made[one.flags] for field, one in options.items() if one.flags in made}
    return found


#: By launcher, the options of its platform, by field.
PLATFORMS: Mapping[str, Mapping[str, DeclaredOption]] = _made()
#: Each of them once, those that several platforms have first.
PLATFORM_OPTIONS: tuple[DeclaredOption, ...] = tuple(
    sorted(
        dict.fromkeys(one for options in PLATFORMS.values() for one in options.values()),
        key=lambda one: one.heading != "Clusters",
    )
)
#: Those of clusters, under headings of their own; the others stand among the options of every job.
OF_CLUSTERS = tuple(one for one in PLATFORM_OPTIONS if one.heading not in (*HEADINGS, MANIFESTS))
#: The launchers that have some.
CLUSTERS = tuple(name for name, options in PLATFORMS.items() if set(OF_CLUSTERS) & set(options.values()))
# What else than --launcher NAME chooses a launcher.
_CHOSEN_BY = {"agents": "--wait-for-agents N", "mpi": "--engine mpi"}


def refuse_options_of_others(launcher: str | None, values: Mapping[str, Any]) -> None:
    """Raises ConfigError when an option is given that another launcher takes, and this one does not. Those for ssh have
    no effect on a job that runs elsewhere; None: no launcher takes any."""
    kept = () if launcher is None else (*PLATFORMS.get(launcher, {}).values(), *PLATFORMS.get("ssh", {}).values())
    for one in PLATFORM_OPTIONS:
        if one not in kept and one.given(values) is not None:
            *others, last = (name for name, options in PLATFORMS.items() if one in options.values())
            named = " or ".join([", ".join(others), last] if others else [last])
            need = _CHOSEN_BY.get(named, f"--launcher {named}")
            raise ConfigError(f"{' or '.join(one.opts)} needs {need}")


def given_to(launcher: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what these values of parameters set for the launcher's platform, as :attr:`JobSpec.platform`."""
    said = {field: one.given(values) for field, one in PLATFORMS.get(launcher, {}).items()}
    return find_launcher(launcher).options.read(said)


def launcher_of(options: Mapping[str, Any], given: Mapping[str, Any], engine: str) -> str:
    """The name of the launcher for a command line; raises ConfigError for options that do not go together.

    Args:
        options: the values of the command's parameters.
        given: what they say of the job.
        engine: the job's.
    """
    asked = options["launcher"]
    hosts: Sequence[Host] = given.get("hosts", ())
    here = all(host.is_this_machine for host in hosts)
    if engine == "mpi" or asked == "mpi":
        if engine != "mpi":
            raise ConfigError("--launcher mpi needs --engine mpi, which starts the ranks with mpirun by itself")
        if asked not in (None, "mpi") or options["wait_for_agents"] is not None:
            raise ConfigError("--engine mpi starts the ranks with mpirun: leave out --launcher and --wait-for-agents")
        return "mpi"
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
        if asked != "agents" and options["wait_for_agents"] is not None:
            raise ConfigError(f"--wait-for-agents has agents started by others, --launcher {asked} by itself: choose")
        return str(asked)
    if options["wait_for_agents"] is not None:
        if hosts:
            raise ConfigError("--wait-for-agents starts no agents on hosts: leave out -H and --hostfile")
        return "agents"
    return "local" if here else "ssh"
