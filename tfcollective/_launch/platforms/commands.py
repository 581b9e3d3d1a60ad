"""Nodes whose agents are started by commands of this machine: the agent itself, or what leads to it, such as ssh."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from tfcollective._base.clock import Deadline
from tfcollective._base.codec import encode_line
from tfcollective._base.descriptors import give_usual_limit
from tfcollective._base.errors import LaunchError
from tfcollective._base.exit_codes import signal_name
from tfcollective._base.processes import end_process, program_of
from tfcollective._base.timing import TIMING
from tfcollective._launch.agent.output import Console, OutputPump
from tfcollective._launch.agent.protocol import NodeFacts, NodeSettings
from tfcollective._launch.nodes.provider import NodeKind, NodeProvider, Refill, Went


class LineWriter:
    """Writes lines to a descriptor on a thread of its own: who reads there may have been stopped, and a line that does
    not fit into the pipe would then block the launcher without end.

    Args:
        descriptor: is the writer's from now on.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def start(self) -> LineWriter:
        """Starts the thread; it ends with :meth:`close`, or when the reader is gone."""
        threading.Thread(target=self._run, name="tfc-writer", daemon=True).start()
        return self

    def write(self, line: bytes) -> None:
        """Sends a line, from any thread and from signal handlers, unless the process has ended."""
        self._lines.put(line)

    def close(self) -> None:
        """Closes the descriptor once all lines are written."""
        self._lines.put(None)

    def _run(self) -> None:
        try:
            with contextlib.suppress(OSError):  # the reader is gone
                while (line := self._lines.get()) is not None:
                    while line:
                        line = line[os.write(self._descriptor, line) :]
        finally:
            os.close(self._descriptor)


_CONSOLES = (Console(1), Console(2))  # shared: a line of one child does not begin in the middle of another's

#: What an interpreter is given to run an agent.
AGENT = (*program_of("tfcollective._launch.agent.main"), "tfcollective._launch.agent")


def own_agent() -> tuple[str, ...]:
    """The command that runs an agent on this machine, with the modules that this process has."""
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; from tfcollective._launch.agent.main import main; sys.exit(main())"
    )
    return (sys.executable, "-c", program, "tfcollective._launch.agent")


class AgentCommand:
    """A process that is an agent or leads to one. Its stdin stays open as long as this process lives.

    Args:
        command: what to run.
        whole_lines: whether to show what it prints in whole lines; else it prints where this process does. ssh, for
            one, passes on what comes in pieces of any length, which several of them would splice.
        environ: its variables; None: those of this process.
    """

    def __init__(self, command: Sequence[str], *, whole_lines: bool, environ: Mapping[str, str] | None = None) -> None:
        output = subprocess.PIPE if whole_lines else None
        try:
            # A session of its own: a Ctrl-C at the terminal is for the launcher to pass on.
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=None if environ is None else dict(environ),
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"cannot run {command[0]}: {error}") from error
        give_usual_limit(self._process.pid)  # before it knows of anything to start
        assert self._process.stdin is not None
        self._orders = LineWriter(os.dup(self._process.stdin.fileno())).start()
        self._process.stdin.close()
        streams = zip((self._process.stdout, self._process.stderr), _CONSOLES, strict=True)
        self._pumps = [OutputPump(stream, console, b"") for stream, console in streams if stream is not None]
        for pump in self._pumps:
            pump.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code as in :attr:`subprocess.Popen.returncode`; None while it runs."""
        return self._process.poll()

    def write(self, line: bytes) -> None:
        """Sends a line, from any thread and from signal handlers, unless the agent has ended."""
        self._orders.write(line)

    def close(self) -> None:
        """Lets go of it: the agent ends what it has started, and then itself."""
        self._orders.close()

    def kill(self) -> None:
        """Kills a process that does not answer."""
        self._process.kill()

    def wait(self, seconds: float) -> None:
        """Waits until it has ended; kills it when that takes longer. Waits a moment for what it has printed: another
        process may hold the other end, such as a connection that ssh keeps for later."""
        end_process(self._process, seconds, ask=False)
        for pump in self._pumps:
            pump.catch_up()


class CommandProvider(NodeProvider):
    """Starts one command for each node.

    Args:
        commands: by the name of the node.
        here: the names of the nodes on this machine, whose commands become their agents.
        whole_lines: see :class:`AgentCommand`, and likewise ``environ``.
        kind: see :class:`NodeProvider`.
        abandoned: see :class:`Timing`.
        find: the command of a node that is not among them, and whether it is on this machine; raises LaunchError when
            there is none. None: no nodes are added.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        here: Collection[str] = (),
        *,
        whole_lines: bool = True,
        kind: NodeKind = NodeKind.KEPT,
        abandoned: float = TIMING.abandoned,
        find: Callable[[str], tuple[Sequence[str], bool]] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._environ = environ
        self._abandoned = abandoned
        self._commands = dict(commands)
        self._here = set(here)
        self._find = find
        self.refill = Refill.NONE if find is None else Refill.SAME
        self._earlier: list[AgentCommand] = []  # of nodes that have gone and come again
        self._whole_lines = whole_lines
        self._processes: dict[str, AgentCommand] = {}
        self._reported: set[str] = set()
        self.kind = kind
        if kind is NodeKind.HERE:
            self.advice = ""

    def request(self, nodes: Sequence[NodeSettings]) -> None:
        """See :class:`NodeProvider`."""
        for settings in nodes:
            process = AgentCommand(
                self._command_of(settings.name), whole_lines=self._whole_lines, environ=self._environ
            )
            earlier = self._processes.pop(settings.name, None)
            if earlier is not None:
                earlier.close()
                self._earlier = [one for one in (*self._earlier, earlier) if one.exit_code is None]
            self._reported.discard(settings.name)
            self._processes[settings.name] = process
            process.write(encode_line(settings))

    def _command_of(self, name: str) -> Sequence[str]:
        if name not in self._commands and self._find is not None:
            self._commands[name], here = self._find(name)
            self._here.update([name] if here else [])
        return self._commands[name]

    def release(self, name: str) -> None:
        """See :class:`NodeProvider`."""
        process = self._processes.get(name)
        if process is not None:
            process.kill()

    def close(self) -> None:
        """See :class:`NodeProvider`."""
        processes = [*self._processes.values(), *self._earlier]
        for process in processes:
            process.close()
        deadline = Deadline.after(self._abandoned)  # one for all: a thousand that hang are killed as soon as one
        for process in processes:
            process.wait(deadline.remaining())

    def events(self) -> Sequence[Went]:
        """See :class:`NodeProvider`."""
        ended = [name for name, one in list(self._processes.items()) if one.exit_code is not None]
        gone = [name for name in ended if name not in self._reported]
        self._reported.update(gone)
        return [Went(name, self._how(name), "what it said stands above") for name in gone]

    def subject(self, node: NodeFacts) -> str:
        """See :class:`NodeProvider`."""
        return (
            f"the agent (pid {self._processes[node.name].pid})" if self.kind is NodeKind.HERE else super().subject(node)
        )

    def explain(self, node: NodeFacts, silent: float) -> str | None:
        """See :class:`NodeProvider`."""
        if self._processes[node.name].exit_code is not None:
            return self._how(node.name)
        if node.name not in self._here:
            return None  # the network may be what does not answer
        return f"sent no heartbeat for {silent:g} s (stopped?) and was killed; its processes have been ended"

    def orders(self, name: str) -> Callable[[bytes], None] | None:
        """See :class:`NodeProvider`."""
        process = self._processes.get(name)
        return None if process is None else process.write

    def _how(self, name: str) -> str:
        code = self._processes[name].exit_code or 0
        if name not in self._here:
            return f"has ended without a report ({self._commands[name][0]}: exit code {code})"
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
        return f"{how}; its processes have been ended"
