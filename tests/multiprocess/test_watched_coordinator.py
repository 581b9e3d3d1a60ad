"""The coordinator in a process of its own, as its launcher holds it."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from functools import partial

import psutil
import pytest
from launching import gone, until
from time_limits import within

from tfcollective._base.errors import CoordinatorError
from tfcollective._base.failures import ExitRecord
from tfcollective._base.job_keys import new_key
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._control.client.channel import Channel
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.serve.process import introduce, spawn
from tfcollective._control.serve.watched import RestartLimit, WatchedCoordinator
from tfcollective._control.state.membership import TaskState
from tfcollective._control.state.rounds import Bounds
from tfcollective._control.wire.protocol import ServerOptions, end_key, node_name

pytestmark = [pytest.mark.multiprocess, pytest.mark.kill]
KEY = new_key()
TASK = TaskKey("worker", 1)
END = ExitRecord("worker:1", 1, "node", 7, None, 9, 1.0)


class Held:
    """One, and what it has called."""

    def __init__(self, directory, limit=None, **options):
        self.events, self.starts, self.failures = queue.SimpleQueue(), queue.SimpleQueue(), queue.SimpleQueue()
        self.options = ServerOptions("job", KEY, workers(2), 60.0, bounds=Bounds(1, 2, 3, 30.0), **options)
        self.journal = directory / "journal"
        self.coordinator = WatchedCoordinator(
            *(self.options, self.journal, dict(os.environ), "warning"),
            *(self.events.put, lambda: self.starts.put(self.coordinator.pid), self.failures.put, limit),
        )

    def __enter__(self):
        self.coordinator.__enter__()
        return self

    def __exit__(self, *unused):
        self.coordinator.close()

    def started(self):
        return psutil.Process(self.starts.get(timeout=within(60)))

    def client(self):
        return CoordinatorClient(self.coordinator.endpoint, KEY, "job", encryption=self.options.encryption)


@pytest.mark.parametrize("encryption", ["auto", "on"])
def test_clients_find_it_again_where_it_was_with_all_that_it_knew(tmp_path, encryption):
    with Held(tmp_path, encryption=encryption) as held, held.client() as client:
        first = held.started()
        at = held.coordinator.endpoint
        held.coordinator.admit(TaskKey("worker", 2))
        assert client.put("key", "old") == 1
        held.coordinator.put_blob("blob", b"bytes")
        held.coordinator.exited(END)
        assert held.events.get(timeout=within(60)).exited == END
        answers = queue.SimpleQueue()
        waiting = threading.Thread(target=lambda: answers.put(client.wait("key", timeout=within(60), newer_than=1)))
        waiting.start()
        first.kill()
        second = held.started()
        assert second.pid != first.pid
        held.coordinator.exited(END)  # once more: it is no news
        assert client.put("key", "new") == 2
        assert answers.get(timeout=within(60)).version == 2
        assert held.coordinator.get_blob("blob") == b"bytes"
        held.coordinator.exited(ExitRecord("worker:0", 0, "node", 8, None, 9, 2.0))
        assert held.events.get(timeout=within(60)).exited.task == "worker:0"
        view = held.coordinator.look()
        assert [(one.task.index, one.state) for one in view.tasks] == [
            *((0, TaskState.FAILED), (1, TaskState.FAILED), (2, TaskState.EXPECTED)),
        ]
        assert held.coordinator.view() == view
        assert (held.coordinator.endpoint, held.coordinator.restarts, held.coordinator.failure) == (at, 1, None)
        waiting.join()
    assert gone(second)
    assert held.failures.empty()
    assert not held.journal.exists()


@pytest.mark.elastic
def test_one_that_hangs_is_replaced(tmp_path):
    with Held(tmp_path) as held, held.client() as client:
        first = held.started()
        assert client.put("key", "old") == 1
        first.suspend()
        second = held.started()
        assert gone(first)
        assert held.coordinator.pid == second.pid
        held.coordinator.admit(TaskKey("worker", 2))
        assert client.get("key").value == "old"


def test_a_node_that_vanishes_while_none_listens_is_missed(tmp_path):
    """Signs of life are not in the journal: those that wait for a node ask again, and its silence counts from then."""
    down, over, answers = threading.Event(), threading.Event(), queue.SimpleQueue()

    def live(number, until_when):
        with held.client() as client:
            while not until_when.is_set():
                Channel(client).call(lambda client: client.alive(node_name(number)))
                until_when.wait(0.2)

    def follow(number):
        with held.client() as client:
            answers.put((number, Channel(client).call(partial(wait_while, number=number))))

    def wait_while(client, number):
        return client.wait_while(end_key(number), node_name(number), 4.0)

    with Held(tmp_path) as held, held.client() as client:
        first = held.started()
        assert [client.enroll(token, {}) for token in "ab"] == [0, 1]
        threads = [threading.Thread(target=live, args=(number, when)) for number, when in ((0, down), (1, over))]
        threads += [threading.Thread(target=follow, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        down.set()
        first.kill()
        held.started()
        assert answers.get(timeout=within(60)) == (0, None)
        Channel(client).call(lambda client: client.put(end_key(1), "ended"))
        number, entry = answers.get(timeout=within(60))
        over.set()
        for thread in threads:
            thread.join()
        assert (number, entry.value) == (1, "ended")


@pytest.mark.elastic
def test_one_that_is_stopped_before_it_listens_is_replaced(tmp_path, monkeypatch):
    stopped = queue.SimpleQueue()

    def stop_the_second(child, config):
        if config.life == 1:
            os.kill(child.process.pid, signal.SIGSTOP)
            stopped.put(child.process.pid)
        return introduce(child, config)

    monkeypatch.setattr("tfcollective._control.serve.watched.introduce", stop_the_second)
    with Held(tmp_path) as held, held.client() as client:
        first = held.started()
        assert client.put("key", "old") == 1
        first.kill()
        second = psutil.Process(stopped.get(timeout=within(60)))
        third = held.started()
        assert len({first.pid, second.pid, third.pid}) == 3
        assert gone(second)
        assert Channel(client).call(lambda client: client.get("key")).value == "old"


@pytest.mark.parametrize("when", ["before it knows its job", "while it serves"])
def test_one_that_is_stopped_dies_with_its_launcher(tmp_path, when):
    """Which the kernel sees to: a stopped process can do nothing."""
    program = """
import os, sys, threading
from tfcollective._control import watched
from tfcollective._control.wire.protocol import ServerOptions
from tfcollective._control.state.rounds import Bounds
from tfcollective._base.tasks import workers

def introduce(child, config, inner=watched.introduce):
    if WHEN:
        threading.Event().wait()
    return inner(child, config)

watched.introduce = introduce
options = ServerOptions("job", b"k" * 32, workers(2), 60.0, bounds=Bounds(1, 2, 3, 30.0))
from pathlib import Path
made = watched.WatchedCoordinator(
    options, Path(sys.argv[1]), dict(os.environ), "warning", lambda event: None, lambda: print("it serves", flush=True)
)
made.__enter__()
threading.Event().wait()
""".replace("WHEN", str(when.startswith("before")))
    launcher = psutil.Popen([sys.executable, "-c", program, str(tmp_path / "journal")], stdout=subprocess.PIPE)
    try:
        if when == "while it serves":
            assert launcher.stdout.readline() == b"it serves\n"
        until(lambda: is_armed(launcher.children()), 60)
        (child,) = launcher.children()
        child.suspend()
        launcher.kill()
        until(lambda: gone(child), 60)
    finally:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()


def is_armed(children):
    """Whether the coordinator's Python is past its first line, in which it asks the kernel: it imports our modules."""
    return children and any("aiohttp" in one.path for one in children[0].memory_maps())


def test_the_port_is_never_free_while_none_listens(tmp_path):
    with Held(tmp_path) as held:
        process = held.started()
        process.kill()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((held.coordinator.endpoint.host, held.coordinator.endpoint.port))
        assert held.started().pid != process.pid


def test_one_that_ends_too_often_is_not_started_again(tmp_path):
    with Held(tmp_path, RestartLimit(1, 1000.0)) as held, held.client() as client:
        held.started().kill()
        held.started().kill()
        why = held.failures.get(timeout=within(60))
        assert "has ended 2 times within 1000 s, at last so: it (pid " in why
        assert "was ended by SIGKILL" in why
        assert held.coordinator.failure == why
        assert held.coordinator.view().failure.message == why
        assert held.coordinator.look() == held.coordinator.view()
        held.coordinator.exited(END)  # has no effect, and does not wait
        with pytest.raises(CoordinatorError, match="no answer"):
            client.get("key")
        with pytest.raises(CoordinatorError, match="has ended 2 times"):
            held.coordinator.put_blob("blob", b"bytes")


def test_one_that_cannot_run_says_why(tmp_path, monkeypatch):
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "aiohttp.py").write_text('raise RuntimeError("this one is broken")')
    monkeypatch.syspath_prepend(modules)  # where the child looks, too
    with Held(tmp_path, RestartLimit(1, 1000.0)) as held, pytest.raises(CoordinatorError) as raised:
        held.coordinator.wait()
    assert "ended with exit code 1; the last lines of its stderr:\n" in str(raised.value)
    assert "RuntimeError: this one is broken" in str(raised.value)


def test_one_that_refuses_to_serve_is_not_tried_again(tmp_path):
    with Held(tmp_path) as held:
        first = held.started()
        first.suspend()
        held.journal.write_text("{}\n")
        first.kill()
        why = held.failures.get(timeout=within(60))
        assert "a line of the journal cannot be read" in why
        assert held.coordinator.failure == why


def test_it_is_closed_at_any_time(tmp_path):
    for attempt in range(3):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        with Held(directory) as held:
            if attempt:
                held.started()
            if attempt == 2:
                os.kill(held.coordinator.pid, signal.SIGSTOP)
        assert not held.journal.exists()
    mine = [one for one in psutil.Process().children() if "tfcollective._control" in " ".join(one.cmdline())]
    until(lambda: not [one for one in mine if not gone(one)])


def test_one_that_has_yet_to_hear_what_to_do_is_closed_without_an_error(tmp_path, monkeypatch):
    starting = threading.Event()

    def late(child, config):
        if config.life:
            starting.set()
            child.process.wait()  # it is closed before it hears
        return introduce(child, config)

    monkeypatch.setattr("tfcollective._control.serve.watched.introduce", late)
    with Held(tmp_path) as held:
        held.started().kill()
        assert starting.wait(within(60))
    assert held.coordinator.failure is None
    assert held.failures.empty()


def test_what_cannot_be_started_now_may_be_soon(tmp_path, monkeypatch, caplog):
    lives = []

    def sometimes(config, *arguments, **options):
        lives.append(config.life)
        if config.life == 1:
            raise CoordinatorError("cannot start the coordinator: no memory")
        return spawn(config, *arguments, **options)

    monkeypatch.setattr("tfcollective._control.serve.watched.spawn", sometimes)
    with Held(tmp_path) as held, held.client() as client:
        first = held.started()
        assert client.put("key", "old") == 1
        first.kill()
        assert held.started().pid != first.pid
        assert client.get("key").value == "old"
        assert lives == [0, 1, 2]
    assert "the coordinator was not started: cannot start the coordinator: no memory" in caplog.text


def test_one_serves_the_job_though_none_can_read_of_it(tmp_path):
    with Held(tmp_path) as held, held.client() as client:
        first = held.started()

        def full():
            held.starts.put(held.coordinator.pid)
            raise OSError("no space left on the device")

        held.coordinator._on_start = full
        first.kill()
        second = held.started()
        assert client.put("key", "value") == 1
        second.kill()  # it is watched as before
        assert held.started().pid != second.pid
        assert client.get("key").value == "value"
        assert held.coordinator.failure is None


def test_an_address_that_is_taken_is_an_error(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(CoordinatorError, match=f"cannot listen on 127.0.0.1, port {port}"),
            Held(tmp_path, bind_port=port),
        ):
            pass


def test_limits_count_only_what_was_lately():
    limit = RestartLimit(2, 10.0)
    assert [limit.allows(now) for now in (0.0, 1.0, 2.0, 9.9, 10.0, 10.5, 11.0)] == [
        True,
        True,
        *[False] * 2,
        True,
        False,
        True,
    ]
