"""The protocol between a node's agent and its launcher: values that travel as lines of JSON, over the agent's stdin or
through the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from signal import Signals
from typing import Any

from tfcollective._base.codec import encode_line
from tfcollective._base.exit_codes import SIGNAL_BASE, ExitCode
from tfcollective._base.failures import ExitReason
from tfcollective._base.log import HOROVOD_LEVELS, LEVELS
from tfcollective._base.options import COMMAND, FLAG, PATH, choice, failures, output, processes, seconds
from tfcollective._base.tasks import NO_RANK, TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.verdict import Rules
from tfcollective._launch.agent.policy import StopCause

#: Where this node has this package.
PACKAGE = Path(__file__).resolve().parents[2]
#: In it, what PYTHONPATH leads to with ``--horovod-compat``: a package named ``horovod`` that stands for ours.
HOROVOD_PACKAGES = PACKAGE / "horovod" / "_alias"
#: Likewise with ``--data-parallel``: what Python runs first.
FIRST_MODULES = PACKAGE / "keras" / "_start"


@dataclass(frozen=True)
class NodeSettings:
    """The settings that an agent needs to enrol: a value that travels as one line of JSON, never in argv.

    Attributes:
        coordinator: HOST:PORT.
        key: the job key in hexadecimal.
        name: what the launcher calls this node.
        network_interfaces: names or networks of the interface for its ranks; empty: the one with the route to the
            coordinator.
        slots: how many ranks it takes; None: the launcher decides.
        timeout: how long (s) to try to reach the coordinator, and then to wait for the first order.
        executable: the interpreter of its ranks in place of the launcher's; None: the agent's own.
        ports: how many ports it has to hold for servers of the script.
        mpi: where MPI has started one agent for each rank: the rank, its place on this host, and how many are here.
        instance: see :class:`NodeFacts`.
    """

    coordinator: str
    key: str = field(repr=False)
    name: str
    network_interfaces: tuple[str, ...] = ()
    slots: int | None = None
    timeout: float = 120.0
    executable: str | None = None
    ports: int = 1
    mpi: tuple[int, int, int] | None = None
    instance: str = ""


@dataclass(frozen=True)
class NodeFacts:
    """The facts that a node reports when it enrols. Facts that another version leaves out are empty.

    Attributes:
        name: what its launcher, or its platform, calls it.
        host: its host name.
        address: where its ranks can be reached.
        version: of tfcollective.
        python: the version of its interpreter.
        executable: the interpreter of its ranks.
        package: the directory of this package.
        slots: how many ranks it takes; None: the launcher decides.
        rank: what MPI has given it, if any.
        ports: those that it holds: for rank 0 of JAX or torch to listen on, or for a TF_CONFIG.
        pid: the agent's process.
        number: the order of enrolment; the launcher's side fills it in.
        instance: the platform's id for this one of the nodes that have its name in turn; empty: no other has it
            again.
        unreadable: why its facts cannot be read; the launcher's side fills it in.
    """

    name: str = ""
    host: str = ""
    address: str = ""
    version: str = ""
    python: str = ""
    executable: str = ""
    package: str = ""
    slots: int | None = None
    rank: int | None = None
    ports: tuple[int, ...] = ()
    pid: int = 0
    number: int = -1
    instance: str = ""
    unreadable: str = ""


@dataclass(frozen=True)
class FirstOrder:
    """A refusal, sent in place of an :class:`AgentConfig`: its reason; ``again``: the node may try again."""

    refused: str | None = None
    again: bool = False


@dataclass(frozen=True)
class End:
    """The end of an agent.

    Attributes:
        failure: what went wrong, or None.
        signal: the name of the signal by which a process other than the launcher asked for the end, or None.
    """

    failure: str | None = None
    signal: str | None = None

    @property
    def exit_code(self) -> int:
        """The exit code for a platform or a person."""
        if self.signal is not None:
            return SIGNAL_BASE + Signals[self.signal]
        return ExitCode.OK if self.failure is None else ExitCode.INTERNAL


def refusal_line(reason: str, again: bool = False) -> bytes:
    """The order to go away; ``again``: for now."""
    return encode_line(FirstOrder(reason, again))


@dataclass(frozen=True)
class WorkerPlan:
    """A process to run: its task, its rank, its command and the additions to its environment.

    An auxiliary task has no rank (``NO_RANK``); when it fails, the others continue.

    Attributes:
        local_rank: its slot on its host.
        host: where it runs; empty: on the launcher's machine.
    """

    task: TaskKey
    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    local_rank: int = 0
    host: str = ""

    @property
    def is_auxiliary_task(self) -> bool:
        """True if it runs outside the world."""
        return self.rank == NO_RANK

    @property
    def label(self) -> str:
        """The prefix of its output lines: the rank, or the role of an auxiliary task."""
        return self.task.type if self.is_auxiliary_task else str(self.rank)

    @property
    def place(self) -> str:
        """The host and slot that it runs in, for people; empty on the launcher's machine."""
        return f"{self.host}, slot {self.local_rank}" if self.host and not self.is_auxiliary_task else self.host


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """The options of all processes of a job, which its agents get."""

    cwd: str | None = processes(
        PATH, "Working directory of the ranks.", "--cwd", metavar="DIR", default="the current one"
    )
    log_dir: str | None = output(
        PATH,
        "Write the output of rank N to DIR/rank.N/stdout and stderr.",
        "--log-dir --output-filename",
        metavar="DIR",
        more="That of an auxiliary task stands under its name.",
        common=True,
    )
    prefix: bool = output(FLAG, "Leave out the rank at the start of output lines.", "--no-prefix", True)
    timestamps: bool = output(
        FLAG, "Put the time at the start of output lines.", "-prefix-timestamp --prefix-output-with-timestamp", False
    )
    log_level: str = output(
        choice(*LEVELS, others=HOROVOD_LEVELS),
        "Log level of launcher, agents and ranks.",
        "--log-level",
        "warning",
        setting=True,
    )
    grace: float = failures(
        seconds(above_zero=False),
        "Time from SIGTERM to SIGKILL, for a last checkpoint.",
        "--grace",
        TIMING.grace,
        more="It counts when a person or a platform ends the job, and when ranks of an elastic job leave a node.",
        setting=True,
    )
    host_timeout: float = failures(
        seconds(), "A host that is silent for so long is lost.", "--host-timeout", TIMING.host_timeout, setting=True
    )
    preemption_file: str | None = failures(
        PATH, "The ranks of a host leave when it has this file.", "--preemption-file", elastic=True
    )
    preemption_command: tuple[str, ...] = failures(
        COMMAND,
        "They leave when this command, run there every few seconds, exits with 0.",
        "--preemption-command",
        (),
        metavar="TEXT",
        elastic=True,
    )

    @property
    def process_options(self) -> dict[str, Any]:
        """These options by name."""
        return {one.name: getattr(self, one.name) for one in fields(ProcessOptions)}


@dataclass(frozen=True)
class AgentConfig(ProcessOptions):
    """The part of a job that one node runs.

    Attributes:
        job_id: the name of the job.
        workers: the processes to run.
        scratch_dir: the launcher's private directory of this job, if the node is its machine; empty: the agent makes
            one.
        size: the number of ranks in the world: names of directories have as many digits as its highest rank.
        rules: the job's, by which the launcher judges it, too.
        slots: of an elastic job: how many ranks this node may have.
    """

    job_id: str
    workers: tuple[WorkerPlan, ...]
    scratch_dir: str = ""
    size: int = 1
    rules: Rules = field(default_factory=Rules)
    slots: int = 0

    @property
    def here(self) -> bool:
        """True on the launcher's machine: the processes have the settings of their node (threads, GPUs, address)."""
        return bool(self.scratch_dir)

    @property
    def lost_after(self) -> float:
        """How long (s) the coordinator may be silent before the processes are ended. The end of stdin alone does not
        show that the launcher has ended: a fork of it may hold the other end."""
        return TIMING.coordinator_lost if self.here else self.host_timeout


@dataclass(frozen=True)
class StopCommand:
    """A later line on the agent's stdin: end the processes, with this signal first, and why."""

    signal: int
    cause: StopCause = StopCause.REQUEST


@dataclass(frozen=True)
class SignalCommand:
    """A later line on the agent's stdin: pass this signal on to the processes."""

    signal: int


@dataclass(frozen=True)
class KillCommand:
    """A later line on the agent's stdin: kill one task's process; its record says in words ``why``, and ``reason``.

    ``if_stopped``: only if the process is stopped by a signal; one that runs or waits is slow, and there is a warning.
    """

    task: str
    why: str
    if_stopped: bool = False
    reason: ExitReason = ExitReason.ENDED


@dataclass(frozen=True)
class StartCommand:
    """A later line on the stdin of an elastic job's agent: start one more process. Its rank is the label of its output.
    ``slots``: how many ranks the node may have now."""

    worker: WorkerPlan
    slots: int


@dataclass(frozen=True)
class LeaveCommand:
    """A later line on the stdin of an elastic job's agent: this task has to leave gracefully, at a commit, as all do on
    a preempted node; ``why`` is for people, and ``change`` the number of the launcher's decision."""

    task: TaskKey
    why: str
    change: int = 0


@dataclass(frozen=True)
class PrepareCommand:
    """A later line on the stdin of an elastic job's agent: have a spare ready that has imported these modules, for a
    process like this one."""

    worker: WorkerPlan
    slots: int
    modules: tuple[str, ...]


@dataclass(frozen=True)
class FinishCommand:
    """A later line on the stdin of an elastic job's agent: no more processes will be started. It ends with the last."""


@dataclass(frozen=True)
class DumpCommand:
    """A later line on the agent's stdin: send the coordinator the stacks of these tasks, for the dump with this
    number."""

    number: int
    tasks: tuple[TaskKey, ...]


Command = (
    StopCommand
    | SignalCommand
    | KillCommand
    | StartCommand
    | PrepareCommand
    | LeaveCommand
    | FinishCommand
    | DumpCommand
)


@dataclass(frozen=True)
class Order:
    """A line of JSON with exactly one command."""

    stop: StopCommand | None = None
    signal: SignalCommand | None = None
    kill: KillCommand | None = None
    start: StartCommand | None = None
    prepare: PrepareCommand | None = None
    leave: LeaveCommand | None = None
    finish: FinishCommand | None = None
    dump: DumpCommand | None = None

    def __post_init__(self) -> None:
        if len(self._given) != 1:
            raise ValueError(f"an order is one of {', '.join(_ORDERS.values())}")

    @classmethod
    def of(cls, command: Command) -> Order:
        """The order that carries ``command``."""
        given: dict[str, Any] = {_ORDERS[type(command)]: command}
        return cls(**given)

    @property
    def _given(self) -> list[Command]:
        given: list[Command | None] = [getattr(self, name) for name in _ORDERS.values()]
        return [one for one in given if one is not None]

    @property
    def command(self) -> Command:
        """The command in this order."""
        return self._given[0]


_ORDERS: Mapping[type, str] = {
    StopCommand: "stop",
    SignalCommand: "signal",
    KillCommand: "kill",
    StartCommand: "start",
    PrepareCommand: "prepare",
    LeaveCommand: "leave",
    FinishCommand: "finish",
    DumpCommand: "dump",
}
