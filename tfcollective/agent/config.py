"""What an agent is to do: values that travel as lines of JSON, over its stdin or through the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfcollective.agent.policy import StopCause
from tfcollective.tasks import NO_RANK
from tfcollective.timing import TIMING

__all__ = [
    "AgentConfig",
    "Command",
    "Order",
    "KillCommand",
    "StopCommand",
    "WorkerConfig",
]


@dataclass(frozen=True)
class WorkerConfig:
    """One process to run: its task, its rank, its command and what to set in its environment.

    An auxiliary task has no rank (``NO_RANK``); when it fails, the others go on.
    """

    task: str
    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def is_auxiliary_task(self) -> bool:
        """Whether it runs outside the world."""
        return self.rank == NO_RANK

    @property
    def label(self) -> str:
        """What its lines of output begin with: the rank, or what stands for it."""
        return self.task.partition(":")[0] if self.is_auxiliary_task else str(self.rank)


@dataclass(frozen=True)
class AgentConfig:
    """One node's part of a job.

    Attributes:
        job_id: the name of the job.
        workers: the processes to run.
        scratch_dir: an existing private directory of this job on this node; empty: the agent makes one.
        cwd: where the processes run; None: where the agent runs.
        log_dir: keep every rank's output under ``log_dir/rank.N/``, an auxiliary task's under its name; None: do not.
        prefix: whether lines of output start with ``[rank]<stdout>: ``.
        timestamps: whether the time stands before that.
        size: the number of ranks in the world: names of directories have as many digits as its highest rank.
        log_level: what the agent logs.
        lost_after: how long (s) the coordinator may be silent before the processes are ended; None: for ever, because
            the end of the launcher ends the agent's stdin, too.
        placed: whether the processes have all that follows from their node already: threads, GPUs, address.
        grace: how long (s) the processes have between SIGTERM and SIGKILL when a person or a platform asks for the end.
    """

    job_id: str
    workers: tuple[WorkerConfig, ...]
    scratch_dir: str = ""
    cwd: str | None = None
    log_dir: str | None = None
    prefix: bool = True
    timestamps: bool = False
    size: int = 1
    log_level: str = "warning"
    lost_after: float | None = None
    placed: bool = False
    grace: float = TIMING.grace


@dataclass(frozen=True)
class StopCommand:
    """A later line on the agent's stdin: end the processes, with this signal first, and why."""

    signal: int
    cause: StopCause = StopCause.REQUEST


@dataclass(frozen=True)
class KillCommand:
    """A later line on the agent's stdin: kill one task's process; ``reason`` goes into its record.

    ``if_stopped``: only if the process is stopped by a signal; one that runs or waits is slow, and there is a warning.
    """

    task: str
    reason: str
    if_stopped: bool = False


Command = StopCommand | KillCommand


@dataclass(frozen=True)
class Order:
    """One command as it travels, a line of JSON: exactly one of them is there."""

    stop: StopCommand | None = None
    kill: KillCommand | None = None

    def __post_init__(self) -> None:
        if (self.stop is None) == (self.kill is None):
            raise ValueError("an order is to stop or to kill")

    @classmethod
    def of(cls, command: Command) -> Order:
        """The order that carries ``command``."""
        return cls(stop=command) if isinstance(command, StopCommand) else cls(kill=command)

    @property
    def command(self) -> Command:
        """What it says."""
        command = self.stop or self.kill
        assert command is not None
        return command
