"""How mpirun is called: pure."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfcollective.errors import ConfigError
from tfcollective.launch.plan.hosts import Host
from tfcollective.launch.system.ssh import DEFAULTS
from tfcollective.settings import variable

__all__ = ["MpiOptions", "check_flavour", "mpirun_command"]

# What an agent on another host needs to be found and loaded; ranks get theirs from the plan.
_PATHS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
# An agent needs a while to end its rank and to say how that went: mpirun would kill it after a second.
_KILL_AFTER_S = 25
_BY_HAND = f"start the ranks with it by hand: {variable('engine')}=mpi mpirun -np N python script.py"


@dataclass(frozen=True)
class MpiOptions:
    """The platform's settings.

    Attributes:
        args: more arguments of mpirun, after ours.
        port: sshd's port on the hosts; None: ssh's own choice.
        identity_file: the private key for the hosts; None: ssh's own choice.
        options: more arguments of ssh.
        python: the interpreter on the hosts.
    """

    args: tuple[str, ...] = ()
    port: int | None = None
    identity_file: str | None = None
    options: tuple[str, ...] = ()
    python: str = sys.executable

    @classmethod
    def from_platform(cls, platform: Mapping[str, object]) -> MpiOptions:
        """Checks what a job says; ConfigError. ``args`` may be one text, as horovodrun has it."""
        values = dict(platform)
        if isinstance(values.get("args"), str):
            values["args"] = _split(str(values["args"]))
        try:
            return cls(**values)  # type: ignore[arg-type]
        except TypeError as error:
            raise ConfigError(
                f"the launcher 'mpi' takes args, port, identity_file, options and python: {error}"
            ) from error


def check_flavour(version: str) -> None:
    """ConfigError unless this is what Open MPI's ``mpirun --version`` says: others take other options."""
    if "Open MPI" not in version:
        said = version.strip().partition("\n")[0] or "nothing"
        raise ConfigError(f"--engine mpi: mpirun is not Open MPI's (it says: {said}); {_BY_HAND}")


def mpirun_command(
    hosts: Sequence[Host],
    num_proc: int,
    options: MpiOptions,
    agent: Sequence[str],
    environ: Mapping[str, str],
    grace: float,
) -> tuple[str, ...]:
    """What runs ``agent`` once for each rank. Nothing in it is secret: the key travels in the environment.

    Args:
        hosts: where, and how many at most; none for this machine.
        num_proc: how many ranks.
        options: the job's.
        agent: the command.
        environ: the launcher's environment: of the paths that are set there the agents learn.
        grace: how long (s) a rank may take to end when mpirun asks for it.
    """
    listed = ",".join(f"{host.name}:{host.slots}" for host in hosts) or f"localhost:{num_proc}"
    handed_on = [word for name in (variable("key"), *_PATHS) if name in environ for word in ("-x", name)]
    return (
        *("mpirun", "--allow-run-as-root", "-np", str(num_proc), "--host", listed, "--map-by", "slot"),
        *("--bind-to", "none", "--mca", "odls_base_sigkill_timeout", str(math.ceil(_KILL_AFTER_S + grace))),
        *(("--mca", "plm_rsh_args", _ssh_arguments(options)) if hosts else ()),
        *handed_on,
        *options.args,
        *agent,
    )


def _ssh_arguments(options: MpiOptions) -> str:
    """Open MPI cuts this text at its spaces, so none of the words may have one. What the user says comes first, as
    ssh takes the first value of an option."""
    words = [*options.options]
    words += [] if options.port is None else ["-p", str(options.port)]
    words += [] if options.identity_file is None else ["-i", options.identity_file]
    words += DEFAULTS
    for word in words:
        if " " in word:
            raise ConfigError(f"mpirun cannot hand {word!r} to ssh, for the space in it: write it into ssh's settings")
    return " ".join(words)


def _split(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"mpi_args {text!r}: {error}") from error
