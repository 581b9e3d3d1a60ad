"""The platform of a ``tfcollective run`` job: its launcher, and that launcher's options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfcollective._base.errors import ConfigError
from tfcollective._base.options import HEADINGS, MANIFESTS, options_of
from tfcollective._cli.groups import DeclaredOption
from tfcollective._launch.launcher import find_launcher, options_by_launcher
from tfcollective._launch.plan.hosts import Host

#: Those whose ranks run what is in an image, which cannot be looked at from here.
RUNS_IMAGES = frozenset({"kubernetes"})


def _made() -> dict[str, dict[str, DeclaredOption]]:
    """Options of several platforms that are spelt alike are one option of the command line."""
    spelt: dict[tuple[str, ...], DeclaredOption] = {}
    return {
        name: {
            field: spelt.setdefault(one.flags, DeclaredOption(one))
            for field, one in options_of(kind).items()
            if one.flags
        }
        for name, kind in options_by_launcher().items()
    }


#: By launcher, the options of its platform, by field.
PLATFORMS: Mapping[str, Mapping[str, DeclaredOption]] = _made()
#: Each of them once, those that several platforms have first.
PLATFORM_OPTIONS: tuple[DeclaredOption, ...] = tuple(
    sorted(
        dict.fromkeys(one for options in PLATFORMS.values() for one in options.values()),
        key=lambda one: one.heading != "Clusters",
    )
)
#: Those that only a job on their platform can have; the others have no effect on a job that runs elsewhere.
OF_CLUSTERS = tuple(one for one in PLATFORM_OPTIONS if one.heading not in (*HEADINGS, MANIFESTS))
#: The launchers that have some.
CLUSTERS = tuple(name for name, options in PLATFORMS.items() if set(OF_CLUSTERS) & set(options.values()))


def refuse_options_of_others(
    launcher: str | None, values: Mapping[str, Any], among: Iterable[DeclaredOption] = OF_CLUSTERS
) -> None:
    """Raises ConfigError when one of these options is given, and this launcher does not take it."""
    takes = PLATFORMS.get(launcher or "", {}).values()
    for one in among:
        if one not in takes and one.given(values) is not None:
            *others, last = (name for name, options in PLATFORMS.items() if one in options.values())
            others = [", ".join(others), last] if others else [last]
            raise ConfigError(f"{' or '.join(one.opts)} needs --launcher {' or '.join(others)}")


def given_to(launcher: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what these values of parameters set for the launcher's platform, as :attr:`JobSpec.platform`."""
    said = {field: one.given(values) for field, one in PLATFORMS.get(launcher, {}).items()}
    return find_launcher(launcher).options.read(said)


def choose_launcher(values: Mapping[str, Any], given: Mapping[str, Any], engine: str) -> str:
    """The name of the launcher for a command line; raises ConfigError for options that do not go together.

    Args:
        values: those of the command's parameters.
        given: what they say of the job.
        engine: the job's.
    """
    refuse_options_of_others(values["launcher"], values)
    return _launcher_of(values, given, engine)


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
