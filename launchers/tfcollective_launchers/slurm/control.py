"""Asks SLURM's commands about jobs and nodes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfcollective.launcher import TIMING, ConfigError, LaunchError, answer_of, expand_hosts

_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:&]*)=(.*?)(?=\s+[A-Z][A-Za-z/:&]*=|\s*$)")
_SUBMITTED = re.compile(r"^([0-9]+)(?:;\S*)?\s*\Z", re.MULTILINE)
_UNKNOWN = "Invalid job id"  # of all that SLURM refuses, its commands exit with 1: only their words tell them apart
_NOTHING = ("", "None", "(null)", "N/A", "Unknown")
_ENDED = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"),
    *("DEADLINE", "REVOKED"),
)
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")


class SlurmError(LaunchError):
    """A command of SLURM's has failed, or gives no answer."""


class UnknownJobError(SlurmError):
    """SLURM does not know the job, or does not any longer."""


@dataclass(frozen=True)
class JobState:
    """A job as ``scontrol show job`` describes it: its fields by name."""

    fields: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        text = self.fields.get(name, "")
        return "" if text in _NOTHING else text

    @property
    def state(self) -> str:
        """``RUNNING``, ``PENDING``, ``TIMEOUT`` and so on."""
        return self["JobState"].partition(" ")[0]

    @property
    def reason(self) -> str:
        """The reason why it waits or has ended; empty: SLURM gives none."""
        return self["Reason"]

    @property
    def ended(self) -> bool:
        """True once it has ended."""
        return self.state in _ENDED

    @property
    def waits(self) -> bool:
        """True while it is in the queue."""
        return self.state in _WAITING

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that it has at the moment."""
        try:
            return tuple(expand_hosts(self["NodeList"])) if self["NodeList"] else ()
        except ConfigError as error:
            raise SlurmError(f"scontrol show job: NodeList: {error}") from error

    @property
    def exit_code(self) -> tuple[int, int]:
        """The batch script's exit code, and the signal that ended it or 0."""
        code, _, number = self["ExitCode"].partition(":")
        return (int(code) if code.isdecimal() else 0, int(number) if number.isdecimal() else 0)


@dataclass(frozen=True)
class NodeState:
    """A node as ``scontrol show node`` describes it."""

    name: str
    address: str
    state: str
    reason: str

    @property
    def drains(self) -> bool:
        """True if an operator takes it out of service."""
        return "DRAIN" in self.state

    def __str__(self) -> str:
        return f"{self.name} is {self.state}" + (f": {self.reason}" if self.reason else "")


def ask(*command: str, seconds: float = TIMING.platform_call) -> str:
    """Returns the output of a SLURM command. Raises SlurmError with its message if it fails."""
    done = answer_of(command, seconds)
    if done is None:
        raise SlurmError(f"{command[0]} cannot be run, or gives no answer within {seconds:g} s")
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        error = UnknownJobError if _UNKNOWN in said else SlurmError
        raise error(f"{' '.join(command[:3])}: exit code {done.returncode}: {said}")
    return done.stdout


def job_state(job_id: str, seconds: float = TIMING.platform_call) -> JobState:
    """The job with this number. Raises SlurmError, and UnknownJobError when there is none."""
    return JobState(fields_of(ask("scontrol", "show", "job", job_id, "--oneliner", seconds=seconds)))


def node_states(names: Sequence[str], seconds: float = TIMING.platform_call) -> dict[str, NodeState]:
    """Returns the states of these nodes by name. Raises SlurmError."""
    lines = ask("scontrol", "show", "node", ",".join(names), "--oneliner", seconds=seconds).splitlines()
    rows = [fields_of(line) for line in lines]
    found = [
        NodeState(row["NodeName"], row.get("NodeAddr", ""), row.get("State", ""), _said(row.get("Reason", "")))
        for row in rows
        if "NodeName" in row
    ]
    return {one.name: one for one in found}


def fields_of(line: str) -> dict[str, str]:
    """The fields of a line of ``scontrol show ... --oneliner``. Values may have spaces."""
    return {name: value.strip() for name, value in _FIELD.findall(line)}


def cancel(job_id: str) -> None:
    """Has SLURM end the job; nothing if it has ended. Raises SlurmError."""
    ask("scancel", job_id)


def requeue(job_id: str) -> None:
    """Has SLURM end the job and put it into the queue again. Raises SlurmError."""
    ask("scontrol", "requeue", job_id)


def submit(script: str, environ: Mapping[str, str]) -> str:
    """Submits this batch script; the number of the job. Raises LaunchError with what sbatch says."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environ),
            timeout=TIMING.submission,
            check=False,
        )
    except OSError as error:
        raise LaunchError(f"cannot run sbatch: {error}; submit from a machine that has SLURM's commands") from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"sbatch gives no answer within {TIMING.submission:g} s; the job may be in the queue: squeue --me"
        ) from error
    if done.returncode != 0:
        raise LaunchError(f"sbatch does not take the job: {done.stderr.strip() or f'exit code {done.returncode}'}")
    found = _SUBMITTED.search(done.stdout)
    if found is None:
        raise LaunchError(
            f"sbatch --parsable: expected the number of the job, got {done.stdout.strip()[:200]!r}; the job may be in "
            "the queue: squeue --me"
        )
    return found.group(1)


def try_submission(script: str) -> str:
    """Asks SLURM when and where it would start the job of this batch script, and returns its words; submits nothing.
    Raises SlurmError if it would refuse the job."""
    done = answer_of(("sbatch", "--test-only"), TIMING.platform_call, script)
    if done is None:
        raise SlurmError(f"sbatch cannot be run, or gives no answer within {TIMING.platform_call:g} s")
    said = "; ".join(line.removeprefix("sbatch: ").strip() for line in done.stderr.splitlines() if line.strip())
    if done.returncode != 0:
        raise SlurmError(f"sbatch would not take a job: {said}")
    return said


def _said(text: str) -> str:
    return "" if text in _NOTHING else text
