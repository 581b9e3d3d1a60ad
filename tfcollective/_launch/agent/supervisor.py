"""Supervises the processes of one node from their start to the end of the last descendant."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from tfcollective._base.clock import SYSTEM_CLOCK, Clock
from tfcollective._base.errors import ConfigError
from tfcollective._base.exit_codes import SIGNAL_BASE, ExitCode
from tfcollective._base.failures import (
    ExceptionRecord,
    ExitReason,
    ExitRecord,
    describe_exception,
    is_in_call,
    member,
    read_exception,
)
from tfcollective._base.log import get_logger
from tfcollective._base.machine.control_groups import MemoryKills, memory_kills
from tfcollective._base.processes import (
    describe_status,
    is_running_with,
    pass_on,
    signal_group,
    signal_orphans,
    spawn,
    state_of,
)
from tfcollective._base.settings import environ_snapshot, variable
from tfcollective._base.stacks import StackFiles
from tfcollective._base.tasks import NO_RANK, TaskKey
from tfcollective._base.timing import TIMING, Timing
from tfcollective._control.messages import Exited, NodeLeaves, Started
from tfcollective._launch.agent.output import Console, OutputPump, Tail
from tfcollective._launch.agent.policy import Stop, StopCause, next_stop, stop_schedule
from tfcollective._launch.agent.preemption import PreemptionWatch
from tfcollective._launch.agent.protocol import AgentConfig, DumpCommand, KillCommand, WorkerPlan
from tfcollective._launch.agent.reporter import Reporter
from tfcollective._launch.agent.spare import Spare
from tfcollective._launch.agent.stacks import Source, StackReader

_LOG = get_logger(__name__)
_CANNOT_RUN = 126
_NOT_FOUND = 127
_KILLED = SIGNAL_BASE + signal.SIGKILL  # a shell's exit code for a program that SIGKILL has ended
_HIDDEN = 1  # the exit code to report if the command's says nothing about its program
_OF_A_FAILURE = (StopCause.FAILURE, StopCause.ELSEWHERE, StopCause.ABANDONED)


@dataclass
class _Worker:
    config: WorkerPlan
    process: subprocess.Popen[bytes]
    failure_file: Path
    tail: Tail
    pumps: list[OutputPump] = field(default_factory=list)
    why_killed: str = ""
    reason: ExitReason = ExitReason.ENDED  # if it is killed
    leaves: bool = False  # it alone was asked to leave

    @property
    def stderr_pump(self) -> OutputPump | None:
        """The pump that reads stderr."""
        return next((pump for pump in self.pumps if pump.tail is not None), None)


class Supervisor:
    """The processes of one agent. All methods are for one thread and none of them waits for a process."""

    def __init__(
        self,
        config: AgentConfig,
        environ: Mapping[str, str],
        node: str,
        reporter: Reporter,
        limits: Timing | None = None,
        clock: Clock = SYSTEM_CLOCK,
        killed_for_memory: Callable[[], MemoryKills | None] = memory_kills,
    ) -> None:
        self._killed_for_memory = killed_for_memory
        self._memory_kills = killed_for_memory()
        self._config = config
        self._environ = environ
        self._node = node
        self._reporter = reporter
        self._stacks = StackReader(reporter.report)
        self._limits = limits or replace(TIMING, grace=config.grace)
        self._clock = clock
        self._consoles = {"stdout": Console(1), "stderr": Console(2)}
        self._running: dict[int, _Worker] = {}
        self._ended: list[_Worker] = []
        self._known = {worker.task for worker in config.workers}
        self.rules = config.rules
        """The job's."""
        self._finishes = not self.rules.elastic
        self._spare: Spare | None = None
        self._stop: Stop | None = None
        self._leaving = False
        self._schedule: list[tuple[float, int]] = []
        self._departures: list[tuple[float, int, int]] = []  # when, which signal, to which leaving process
        self._orphaned: list[tuple[float, int, _Worker]] = []  # when, which signal, to this one's descendants
        self._preemption = PreemptionWatch(
            config.preemption_file, config.preemption_command, environ_snapshot(), config.cwd, self._limits, clock
        )
        self._signalled_at: float | None = None  # monotonic

    @property
    def done(self) -> bool:
        """True once all processes have ended and no more will be started."""
        return not self._running and (self._finishes or self._stop is not None)

    @property
    def wake_at(self) -> float | None:
        """The time (monotonic) at which :meth:`tick` has something to do, or None."""
        own = [one[0] for one in self._schedule[:1]]
        own += [one[0] for one in self._departures[:1]]
        own += [one[0] for one in self._orphaned[:1]]
        return min((at for at in (*own, self._preemption.wake_at) if at is not None), default=None)

    @property
    def leaving(self) -> bool:
        """True if the node is preempted and the job continues without its processes."""
        return self._leaving

    @property
    def failed(self) -> bool:
        """True if the processes were ended because the job has failed, here or elsewhere."""
        return self._stop is not None and self._stop.cause in _OF_A_FAILURE

    def start(self) -> None:
        """Starts all processes, then the threads that read them (a fork must not meet a thread)."""
        for worker in self._config.workers:
            self._start(worker)
        for running in self._running.values():
            for pump in running.pumps:
                pump.start()

    def start_later(self, worker: WorkerPlan) -> None:
        """Starts one more process, unless they are being ended."""
        if self.leaving:
            self._report(
                ExitRecord(
                    *(str(worker.task), worker.rank, self._node, 0, None, None, self._clock.monotonic()),
                    reason=ExitReason.NOT_STARTED,
                    leaving=True,
                )
            )
            return
        if worker.task in self._known or self._stop is not None:
            _LOG.warning("agent: %s is not started: the processes here are being ended", worker.task)
            return
        self._known.add(worker.task)
        before = set(self._running)
        self._start(worker)
        for pid in set(self._running) - before:
            for pump in self._running[pid].pumps:
                pump.start()

    def prepare(self, worker: WorkerPlan, modules: Sequence[str]) -> None:
        """Has a spare ready for the next process that is started, unless there is one or no more are started."""
        if self._spare is not None or self._finishes or self._leaving or self._stop is not None:
            return
        try:
            # Without the task of another rank: the kernel also shows this environment for processes that it forks.
            env = {name: value for name, value in self._env_of(worker).items() if name != variable("task")}
            self._spare = Spare.start(worker.argv, modules, env, self._config.cwd)
        except OSError as error:
            _LOG.warning("agent: a spare process cannot be started: %s", error)

    def cannot_start(self, worker: WorkerPlan, reason: str) -> None:
        """Reports that one more process cannot be started here, and why."""
        self._known.add(worker.task)
        self._record_start_failure(worker, reason, _CANNOT_RUN)

    def ask_to_leave(self, task: TaskKey, why: str, change: int = 0) -> None:
        """Asks one task to leave an elastic job gracefully, as :meth:`leave` asks all tasks of a preempted node. Does
        nothing if it does not run, or is being ended. ``change``: see :class:`LeaveCommand`."""
        if self._stop is not None:
            return
        for pid, worker in self._running.items():
            if worker.config.task == task and not worker.leaves:
                worker.leaves = True
                stop = Stop(StopCause.PREEMPTION, self._clock.monotonic())
                self._departures += [(at, number, pid) for at, number in stop_schedule(stop, self._limits)]
                self._departures.sort()
                self._reporter.report(NodeLeaves((task,), why, change))

    def finish(self) -> None:
        """Starts no more processes from now on."""
        self._finishes = True
        self._dismiss_spare()

    def _dismiss_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def reap(self) -> None:
        """Takes note of every process that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._spare is not None and self._spare.pid == pid:
                _LOG.info("agent: the spare process %d has ended", pid)
                self._spare.ended()
                self._spare = None
            worker = self._running.pop(pid, None)
            if worker is not None:
                self._ended.append(worker)
                self._record_exit(worker, status)
                self._end_orphans(worker)
                self._end_without_ranks()
            else:  # or an orphan that became our child
                self._preemption.ended(pid, status)
                self._heed_notice()

    def stop(self, cause: StopCause, number: int = signal.SIGTERM) -> None:
        """Decides to end the processes; :func:`next_stop` says how this changes an earlier decision."""
        stop = next_stop(self._stop, Stop(cause, self._clock.monotonic(), number))
        if stop is None:
            return
        self._stop = stop
        self._dismiss_spare()
        self._schedule = list(stop_schedule(stop, self._limits))
        self.tick()

    def leave(self, why: str) -> None:
        """Asks the ranks of this preempted node to leave an elastic job gracefully, at their next commit; ``why`` says
        how it is known. Ranks that have not ended when the grace is over are ended, and lost."""
        if self._stop is not None:
            return
        ranks = [worker.config.task for worker in self._running.values() if not worker.config.is_auxiliary_task]
        self._leaving = True
        self._dismiss_spare()
        self.stop(StopCause.PREEMPTION)
        _LOG.warning(
            "agent: %s is preempted (%s): %s to leave the job within %g s",
            next((worker.host for worker in self._config.workers if worker.host), socket.gethostname()),
            why,
            f"{', '.join(map(str, ranks))} {'has' if len(ranks) == 1 else 'have'}" if ranks else "no rank is left here",
            self._limits.grace,
        )
        self._reporter.report(NodeLeaves(tuple(ranks), why))
        self._end_without_ranks()

    def _end_without_ranks(self) -> None:
        """Ends an evaluator that is alone on a preempted node."""
        if self.leaving and self._running and all(one.config.is_auxiliary_task for one in self._running.values()):
            self.stop(StopCause.ELSEWHERE)

    def _heed_notice(self) -> None:
        if self._preemption.notice:
            self.leave(self._preemption.notice)

    def pass_on(self, number: int) -> None:
        """Passes a signal on to all processes that handle it."""
        for pid in self._running:
            pass_on(pid, number)

    def kill(self, command: KillCommand) -> None:
        """Kills one task's process; its record says why. Does nothing if it does not run."""
        for pid, worker in self._running.items():
            if str(worker.config.task) != command.task:
                continue
            state = state_of(pid) if command.if_stopped else None
            if state is not None and not state.stopped:
                _LOG.warning(
                    "rank %s (%s, pid %d) %s, but its process is not stopped (%s, %.0f s of CPU time): it is busy or "
                    "hangs, and is not killed",
                    worker.config.label,
                    command.task,
                    pid,
                    command.why,
                    state.name,
                    state.cpu_seconds,
                )
                continue
            worker.why_killed = command.why + (" while it was stopped, and was killed" if state is not None else "")
            worker.reason = command.reason
            signal_group(pid, signal.SIGKILL)

    def dump(self, command: DumpCommand) -> None:
        """Has the stacks of these tasks sent to the coordinator, once they have been read."""
        self._stacks.ask(
            command.number,
            [
                Source(worker.config.task, pid, StackFiles(str(worker.failure_file)))
                for pid, worker in self._running.items()
                if worker.config.task in command.tasks
            ],
        )

    def tick(self) -> None:
        """Sends the signals that are due, and checks whether the node is preempted."""
        self._preemption.tick()
        self._heed_notice()
        now, limit = self._clock.monotonic(), f"{self._limits.grace:g} s (--grace)"
        while self._departures and self._departures[0][0] <= now:
            _, number, pid = self._departures.pop(0)
            if pid in self._running:
                self._running[pid].why_killed = f"had not left, as it was asked to, within {limit}"
                self._signal(pid, number)
        while self._orphaned and self._orphaned[0][0] <= now:
            _, number, worker = self._orphaned.pop(0)
            self._signal_orphans(worker, number)
        while self._schedule and self._schedule[0][0] <= now:
            _, number = self._schedule.pop(0)
            for pid, worker in self._running.items():
                if self._stop is not None and self._stop.cause is StopCause.PREEMPTION:
                    worker.why_killed = f"had not left its preempted node within {limit}"
                self._signal(pid, number)
            if self._signalled_at is None:
                self._signalled_at = now

    def _end_orphans(self, worker: _Worker) -> None:
        """Ends the processes that a lost rank has started, if the job continues without it: else all end together."""
        goes_on = self.rules.elastic and self._stop is None and not worker.config.is_auxiliary_task
        if goes_on and (worker.process.returncode != 0 or worker.leaves):
            # Not at once: searching all processes takes a while, and the others wait for the report of this end.
            now, wait = self._clock.monotonic(), self._limits.sweep
            self._orphaned += [(now + wait, signal.SIGTERM, worker), (now + 2 * wait, signal.SIGKILL, worker)]
            self._orphaned.sort(key=lambda one: one[0])

    def _signal_orphans(self, worker: _Worker, number: int) -> None:
        known = {*self._running, *(() if self._spare is None else (self._spare.pid,))}
        mark = variable("task"), str(worker.config.task)
        count = signal_orphans(worker.process.pid, mark, known, number)
        if count:
            _LOG.info("agent: sending signal %d to %d processes that %s has left", number, count, worker.config.task)

    def _signal(self, pid: int, number: int) -> None:
        _LOG.info("agent: sending signal %d to process %d", number, pid)
        signal_group(pid, number)

    def drain(self, timeout: float) -> None:
        """Waits until all output is shown, at most ``timeout`` seconds, or a little longer if the pumps are late."""
        deadline = self._clock.monotonic() + timeout
        latest = deadline + TIMING.late_drain  # for all of them together
        for worker in self._ended:
            for pump in worker.pumps:
                now = self._clock.monotonic()
                pump.catch_up(max(0.0, deadline - now), max(0.0, latest - now))

    def _start(self, config: WorkerPlan) -> None:
        directory = self._config.scratch_dir
        if not Path(directory).is_dir():
            gone = ConfigError(
                f"the directory of the job on this host, {directory}, is gone, and the job key with it: it has to stay "
                f"for as long as the job runs; {variable('runtime_dir')} names another place"
            )
            self._record_start_failure(config, str(gone), ExitCode.USAGE, gone)
            return
        copies: dict[str, BinaryIO] = {}
        try:
            copies = self._open_copies(config)
            process = self._spare_as(config) or spawn(config.argv, self._env_of(config), self._config.cwd)
        except OSError as error:
            for copy in copies.values():
                copy.close()
            self._record_start_failure(
                config,
                _why_not_run(config.argv[0], error),
                _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN,
            )
            return
        worker = _Worker(config, process, self._failure_file(config), Tail())
        self._running[process.pid] = worker
        _LOG.info("agent: %s is process %d", config.task, process.pid)
        host = config.host or socket.gethostname()
        self._reporter.report(Started(config.task, self._node, process.pid, host))
        for name, source, tail in (("stdout", process.stdout, None), ("stderr", process.stderr, worker.tail)):
            if source is not None:
                prefix = f"[{config.label}]<{name}>: ".encode() if self._config.prefix else b""
                worker.pumps.append(
                    OutputPump(source, self._consoles[name], prefix, copies.get(name), tail, self._config.timestamps)
                )

    def _spare_as(self, config: WorkerPlan) -> subprocess.Popen[bytes] | None:
        """The spare, if there is one that can become this process."""
        spare, self._spare = self._spare, None
        process = None if spare is None else spare.become(config.argv, self._env_of(config))
        if spare is not None and process is None:
            spare.close()
        return process

    def _failure_file(self, config: WorkerPlan) -> Path:
        return Path(self._config.scratch_dir) / f"failure-{config.task.type}-{config.task.index}.json"

    def _env_of(self, config: WorkerPlan) -> dict[str, str]:
        return {**self._environ, **config.env, variable("failure_file"): str(self._failure_file(config))}

    def _open_copies(self, config: WorkerPlan) -> dict[str, BinaryIO]:
        if self._config.log_dir is None:
            return {}
        digits = len(str(self._config.size - 1))
        name = config.label if config.is_auxiliary_task else f"rank.{config.rank:0{digits}d}"
        directory = Path(self._config.log_dir) / name
        directory.mkdir(parents=True, exist_ok=True)
        return {name: _new_file(directory / name) for name in self._consoles}

    def _record_exit(self, worker: _Worker, status: int) -> None:
        worker.process.returncode = os.waitstatus_to_exitcode(status)
        if worker.stderr_pump is not None:
            worker.stderr_pump.catch_up()
        exception = read_exception(str(worker.failure_file))
        code, number, note = _end_of(worker, status, exception)
        exception = exception if code != 0 else None
        time = exception.time if exception is not None else self._clock.monotonic()
        self._report(
            ExitRecord(
                task=str(worker.config.task),
                rank=worker.config.rank,
                node=self._node,
                pid=worker.process.pid,
                exit_code=code,
                signal=number,
                time=time,
                reason=self._reason_of(worker, time),
                note=note,
                stderr_tail=worker.tail.lines(),
                exception=exception,
                leaving=self.leaving or worker.leaves,
                hint=self._hint_at_memory(worker) if number == signal.SIGKILL or code == _KILLED else "",
            )
        )

    def _reason_of(self, worker: _Worker, time: float) -> ExitReason:
        """Returns the reason of an end at this ``time``."""
        if worker.why_killed:
            return worker.reason
        if self._signalled_at is not None and time >= self._signalled_at:
            return ExitReason.STOPPED
        return ExitReason.PEER if _ended_by_horovod(worker.tail.lines()) else ExitReason.ENDED

    def _hint_at_memory(self, worker: _Worker) -> str:
        """Returns a hint if the kernel may have sent the SIGKILL that ended this process."""
        before, now = self._memory_kills, self._killed_for_memory()
        self._memory_kills = now
        ours = self._signalled_at is not None or bool(worker.why_killed)
        if ours or before is None or now is None or now.count <= before.count:
            return ""
        return (
            f"the kernel has killed a process of this {now.where} for lack of memory meanwhile: try a smaller batch, "
            "fewer ranks on the host, or more memory"
        )

    def _record_start_failure(self, config: WorkerPlan, text: str, code: int, error: ConfigError | None = None) -> None:
        """Reports a process that could not start; ``error``: another one in its place would fail the same way."""
        self._consoles["stderr"].write(f"[{config.label}]<stderr>: {text}\n".encode())
        now = self._clock.monotonic()
        exception = None if error is None else describe_exception(error, now)
        about = (str(config.task), config.rank, self._node, 0, code, None, now)
        self._report(ExitRecord(*about, stderr_tail=(text,), exception=exception))

    def _report(self, record: ExitRecord) -> None:
        self._reporter.report(Exited(record))
        if not record.failed:
            return
        if record.rank != NO_RANK and not self.rules.outlasts(record):
            self.stop(StopCause.FAILURE)
        elif record.rank == NO_RANK and not record.stopped:
            _LOG.warning("%s (pid %d) %s: training continues without it", record.task, record.pid, record.how)


def _new_file(path: Path) -> BinaryIO:
    """Opens a file that does not exist yet; the file of an earlier run moves to the next free ``NAME.N``."""
    if path.exists():
        number = 1
        while path.with_name(f"{path.name}.{number}").exists():
            number += 1
        path.rename(path.with_name(f"{path.name}.{number}"))
    return path.open("xb", buffering=0)


def _end_of(worker: _Worker, status: int, exception: ExceptionRecord | None) -> tuple[int | None, int | None, str]:
    """Returns the exit code, the signal, and a note.

    The command may be a wrapper, ``python train.py | tee log`` for example, whose exit code is another program's. Then
    the record of the exception counts. It is that of the last process that came to the job as this task: a later one
    has removed the record when it joined. What ``init()`` raised, the program has caught.
    """
    code, number = describe_status(status)
    if code == 0 and exception is not None and exception.final:
        return _HIDDEN, None, "exited with code 0 although an exception had ended its program"
    program = _program_of(worker) if code == 0 else None
    if program is not None:
        return (
            _HIDDEN,
            None,
            f"exited with code 0 while its program, process {program}, kept running: a command must wait for it",
        )
    if code == 0 and is_in_call(str(worker.failure_file)):
        return _HIDDEN, None, "exited with code 0 before its function had returned"
    return code, number, worker.why_killed if number in (signal.SIGKILL, signal.SIGTERM) else ""


def _ended_by_horovod(lines: Sequence[str]) -> bool:
    """True if Horovod says that another rank has ended. A script on Horovod's engine leaves no record, and its exit
    code is that of any exception: these words are the only sign."""
    return any(
        "Horovod has been shut down. This was caused by an exception on one of the ranks" in one for one in lines
    )


def _why_not_run(program: str, error: OSError) -> str:
    at = "" if error.filename in (None, program) else f" ({error.filename})"
    hint = "; a script needs a first line that names its interpreter, such as #!/bin/sh"
    return f"cannot run {program!r}: {error.strerror}{at}{hint if error.errno == errno.ENOEXEC else ''}"


def _program_of(worker: _Worker) -> int | None:
    """The process that still takes part in the job for a command that has ended; None if there is none."""
    path = str(worker.failure_file)
    program = member(path)
    if program is None or program == worker.process.pid:
        return None
    return program if is_running_with(program, variable("failure_file"), path) else None
