"""Runs the real command line, and finds every process that a run has left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field

import psutil
from time_limits import within

_MARK = "TFC_TEST_MARK"
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)

# Joins the world as tfcollective.init() does, without the native library.
JOIN = """
import os, sys, time
from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import Beat, Leave, Status
from tfcollective._control.identity import discover
from tfcollective._base.settings import Settings
me = discover(Settings.load(), {})
rank = me.task.index
def join():
    client = CoordinatorClient(me.coordinator, me.key, me.job_id)
    Channel(client).join(me.task, size=me.world_size, node=me.node_id, pid=os.getpid(), address="a", timeout=60)
    client.call(Beat(me.task, "running", {"completed": 7}))
    return client
def wait_until(count, state):
    with CoordinatorClient(me.coordinator, me.key, me.job_id) as client:
        while sum(task.state == state for task in client.call(Status()).tasks) < count:
            time.sleep(0.05)  # the status has no call that waits
"""

# Meets the other ranks with sockets, as JAX and torch do.
MEET = """
import os, socket
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    try:
        socket.socket().bind(address)
    except OSError:
        print("held")
    with socket.create_server(address) as server:
        for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
            print("met", server.accept()[0].recv(9).decode())
else:
    while True:
        try:
            connection = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            pass
    connection.sendall(os.environ["JAX_PROCESS_ID"].encode())
"""


def words_of(process):
    """Its command line; empty when it has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def environment_of(process):
    """Its variables; empty when it has just ended."""
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def gone(process):
    """Whether it has ended. The process that adopts it may reap it later, or never."""
    try:
        return not process.is_running() or process.status() in _ENDED
    except psutil.NoSuchProcess:
        return True


def where(add, times=1):
    """A function of a module that the ranks have to import."""
    return os.environ["TFCOLLECTIVE_TASK"], add * times, os.getpid()


@dataclass
class Run:
    """One ``tfcollective run``, marked so that its processes are recognised."""

    arguments: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tfcollective", "run", *self.arguments],
            env={**os.environ, **self.env, _MARK: self.mark},
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.kill()
        self.process.communicate()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def finish(self, timeout=60.0):
        """Waits for the end; returns (exit code, stdout, stderr)."""
        out, err = self.process.communicate(timeout=within(timeout))
        return self.process.returncode, out, err

    def processes(self):
        """All processes of this run that exist."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def wait_until_gone(self, timeout=5.0):
        """Fails with the list of processes that are still there after ``timeout`` seconds of an idle machine."""
        until(
            lambda: not self.processes(),
            timeout,
            lambda: f"left behind: {[words_of(p) for p in self.processes()]}",
        )

    def agent(self):
        """The agent's process."""
        return self._find("tfcollective._launch.agent")[0]

    def workers(self):
        """The processes that the agent has started."""
        return self.agent().children()

    def wait_for_line(self, text):
        """Reads stdout up to a line that contains ``text`` and returns it."""
        for line in self.process.stdout:
            if text in line:
                return line
        raise AssertionError(f"no {text!r}: {self.process.stderr.read()}")

    def signal(self, number):
        """Sends a signal to the launcher."""
        os.kill(self.process.pid, number)

    def _find(self, word):
        return [process for process in self.processes() if word in words_of(process)]

    def _is_ours(self, process):
        try:
            return process.status() not in _ENDED and process.environ().get(_MARK) == self.mark
        except (psutil.Error, OSError):
            return False


@contextlib.contextmanager
def agents(one, count, key):
    """As many agents for the job of ``one``, started as its launcher says."""
    join = next(line for line in one.process.stderr if "agent --join" in line).split()
    assert join[:2] == ["tfcollective", "agent"]
    assert join[-1] == str(key)
    command = [sys.executable, "-m", *join]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        yield started
    finally:
        for agent in started:
            agent.kill()
            agent.communicate()


def run(*arguments, timeout=60.0, **options):
    """Runs to the end and checks that nothing is left; returns (exit code, stdout, stderr)."""
    with Run(arguments, **options) as one:
        result = one.finish(timeout)
        one.wait_until_gone()
        return result


def until(condition, timeout=20.0, explain=lambda: "it did not happen"):
    """Waits for something that another process does."""
    deadline = time.monotonic() + within(timeout)
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.02)  # processes of others give no notice


__all__ = ["JOIN", "MEET", "Run", "environment_of", "gone", "run", "signal", "until", "where", "words_of"]
