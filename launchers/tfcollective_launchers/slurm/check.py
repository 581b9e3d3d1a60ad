"""The checks of ``tfcollective check --launcher slurm``."""

from __future__ import annotations

from collections.abc import Iterator

from tfcollective.launcher import ConfigError, Finding, environ_snapshot
from tfcollective_launchers.slurm import control
from tfcollective_launchers.slurm.allocation import Allocation


def findings(script: str) -> Iterator[Finding]:
    """Yields findings, up to one without which the next could not work; ``script``: the batch script of a small job."""
    return Finding.until_one_fails((_commands, _controller, lambda: _place(script)))


def _commands() -> Finding:
    def look() -> str:
        return ", ".join(
            control.ask(name, "--version").strip() + f" ({name})" for name in ("srun", "sbatch", "scontrol")
        )

    return Finding.of("commands", look, "install SLURM's commands (Debian: slurm-client), or use a login node")


def _controller() -> Finding:
    remedy = "see whether `sinfo` answers: slurm.conf, the service munge, and the controller's host"
    return Finding.of("controller", lambda: " ".join(control.ask("scontrol", "ping").split()), remedy)


def _place(script: str) -> Finding:
    """Finds where a job would run: in this process's allocation, or in one that SLURM could give, and when."""
    try:
        allocation = Allocation.of(environ_snapshot())
    except ConfigError as error:
        return Finding("allocation", False, str(error), "start the launcher once, in the batch script")
    if allocation is not None:
        nodes = ", ".join(f"{host.name} ({host.slots})" for host in allocation.hosts)
        return Finding("allocation", True, f"job {allocation.job_id}, nodes with their tasks: {nodes}")
    remedy = "change the options that it names: --queue, --account, --time, --gres and so on"
    return Finding.of("submission", lambda: control.try_submission(script), remedy)
