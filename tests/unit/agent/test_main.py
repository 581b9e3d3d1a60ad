"""An agent's life, in this process: a real coordinator, and few processes."""

import json
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from launching import until
from time_limits import within

from tfcollective._base.codec import encode_line
from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.job_keys import new_key
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.timing import TIMING
from tfcollective._base.verdict import Rules
from tfcollective._control.client.client import CoordinatorClient, UnprovenReplyError
from tfcollective._control.client.liveness import Heartbeat
from tfcollective._control.messages import ListNodes
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.store_keys import end_key, item_key, orders_key
from tfcollective._control.wire.protocol import ServerOptions
from tfcollective._launch.agent import node
from tfcollective._launch.agent.main import Supervision, main, serve
from tfcollective._launch.agent.orders import Interrupts, Orders
from tfcollective._launch.agent.policy import StopCause
from tfcollective._launch.agent.protocol import (
    AgentConfig,
    End,
    KillCommand,
    NodeSettings,
    Order,
    SignalCommand,
    StopCommand,
    WorkerPlan,
    refusal_line,
)


@pytest.fixture
def key():
    return new_key()


@pytest.fixture
def server(key):
    with CoordinatorServer(ServerOptions("job", key, workers(1), 100.0)) as server:
        yield server


@pytest.fixture
def client(server, key):
    with CoordinatorClient(server.endpoint, key) as client:
        yield client


def settings(server, key, timeout=60.0):
    return NodeSettings(str(server.endpoint), key.hex(), "here", ("lo",), timeout=timeout)


def order(*argv, **options):
    worker = WorkerPlan(TaskKey.parse("worker:0"), 0, argv, {})
    return encode_line(AgentConfig("job", (worker,) if argv else (), **options)).decode()


def test_agent_runs_its_part_and_reports_ends(server, client, key, tmp_path, monkeypatch):
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "said"
    program = f"import os; open({str(path)!r}, 'w').write(os.environ['TFCOLLECTIVE_BIND_HOST'])"
    client.put(item_key(orders_key(0), 0), order(sys.executable, "-c", program))
    assert serve(settings(server, key)) == 0
    assert path.read_text() == "127.0.0.1"
    assert client.get(end_key(0)).value == {"failure": None, "signal": None}
    (record,) = [task.exit for task in server.snapshot().tasks]
    assert (record.exit_code, record.node) == (0, node_id())
    assert list(tmp_path.iterdir()) == [path]  # its private directory is gone


def test_a_container_serves_one_start(server, client, key, tmp_path, monkeypatch):
    """Whatever starts the job again has other containers for it; an agent that joined by itself would wait here."""
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path))
    client.put(item_key(orders_key(0), 0), order("false", rules=Rules(restarts=1)))
    assert serve(settings(server, key), rejoins=False) == 0


def node_id():
    from tfcollective._control.identity import current_node_id

    return current_node_id()


def test_an_early_failure_reaches_the_launcher(server, client, key, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "file" / "x"))
    client.put(item_key(orders_key(0), 0), order("true"))
    with pytest.raises(ConfigError) as raised:
        serve(settings(server, key))
    said = client.get(end_key(0)).value
    assert said == {"failure": str(raised.value), "signal": None}


def test_orders_that_are_none_reach_the_launcher(server, client, key):
    client.put(item_key(orders_key(0), 0), json.dumps({"workers": 1}))
    with pytest.raises(ConfigError, match="configuration cannot be read"):
        serve(settings(server, key))
    assert "configuration cannot be read" in client.get(end_key(0)).value["failure"]


def test_the_key_of_the_next_launcher_is_taken(server, client, key, tmp_path, caplog):
    """A launcher that was killed has left its file; the next one replaces it."""
    path = tmp_path / "key"
    stale = new_key()
    path.write_text(stale.hex())
    path.chmod(0o600)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(node.enroll(settings(server, stale), "127.0.0.1", (), path, time.sleep)),
        daemon=True,
    )
    thread.start()
    until(lambda: "Waiting for another key" in caplog.text, 30)
    path.unlink()
    with pytest.raises(ConfigError):
        node.wait_for_key(path, 0.0)
    path.touch(mode=0o600)
    path.write_text(key.hex())
    thread.join(within(30))
    ((newest, number),) = found
    assert (newest.key, number) == (key.hex(), 0)
    assert [one.facts["name"] for one in client.call(ListNodes(0, 0.0)).nodes] == ["here"]


def test_a_key_that_stays_wrong_is_an_error(server, tmp_path):
    stale = new_key()
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text(stale.hex())
    for key_file in (path, None):
        with pytest.raises(UnprovenReplyError, match="does not prove the job key"):
            node.enroll(settings(server, stale, timeout=0.0), "127.0.0.1", (), key_file, time.sleep)


def test_a_launchers_refusal_keeps_its_text(server, client, key):
    client.put(item_key(orders_key(0), 0), refusal_line("not needed").decode())
    with pytest.raises(ConfigError, match="not needed"):
        serve(settings(server, key))


def test_no_orders(server, key):
    with pytest.raises(CoordinatorError, match=r"given no orders within 0\.5 s"):
        serve(settings(server, key, timeout=0.5))


def test_without_orders_an_agent_waits_like_ranks(server, key, monkeypatch):
    limits = []

    class Noted(Heartbeat):
        def start(self):
            limits.append(self.limit)
            super().start()

    monkeypatch.setattr("tfcollective._launch.agent.main.Heartbeat", Noted)
    with pytest.raises(CoordinatorError, match="given no orders"):
        serve(settings(server, key, timeout=0.1))
    assert limits == [TIMING.coordinator_lost]


def test_a_signal_before_orders_ends_the_agent(server, client, key):
    """As process 1 of a container it would have no default for it."""
    arrived = threading.Thread(target=lambda: (client.call(ListNodes(0, within(20))), os.kill(os.getpid(), 15)))
    arrived.start()
    assert serve(settings(server, key)) == 128 + signal.SIGTERM
    arrived.join()
    assert client.get(end_key(0)).value == {"failure": None, "signal": "SIGTERM"}


class Processes:
    """A supervisor whose processes end when it is asked to stop them."""

    def __init__(self):
        self.stopped, self.killed, self.done, self.wake_at = [], [], False, None
        self.passed_on = []
        self.rules = Rules()

    def stop(self, cause, number=signal.SIGTERM):
        self.stopped.append((cause, number))
        self.done = True

    def pass_on(self, number):
        self.passed_on.append(number)

    def kill(self, command):
        self.killed.append((command.task, command.why))

    def reap(self):
        pass

    def tick(self):
        pass


@pytest.fixture
def watched():
    reader, writer = os.pipe()
    with Interrupts() as interrupts, os.fdopen(writer, "wb", buffering=0) as launcher, os.fdopen(reader):
        processes = Processes()
        orders = Orders(reader)
        made = SimpleNamespace(processes=processes, launcher=launcher, interrupts=interrupts)
        made.run = Supervision(processes, orders, interrupts).run
        yield made


def line(command):
    return encode_line(Order.of(command))


def test_a_signal_from_elsewhere_is_reported(watched):
    signal.raise_signal(signal.SIGTERM)
    assert watched.run() == End(None, "SIGTERM")
    assert watched.processes.stopped == [(StopCause.REQUEST, signal.SIGTERM)]


def test_a_signal_after_an_order_goes_unreported(watched):
    watched.launcher.write(line(KillCommand("worker:1", "because")) + line(StopCommand(15, StopCause.ELSEWHERE)))
    original = watched.processes.stop

    def stop(cause, number=signal.SIGTERM):
        original(cause, number)
        watched.processes.done = cause is StopCause.REQUEST
        signal.raise_signal(signal.SIGTERM)

    watched.processes.stop = stop
    assert watched.run() == End(None, None)
    assert watched.processes.killed == [("worker:1", "because")]
    assert watched.processes.stopped == [(StopCause.ELSEWHERE, 15), (StopCause.REQUEST, 15)]


def test_signals_for_the_program_are_passed_on(watched):
    watched.launcher.write(line(SignalCommand(signal.SIGUSR2)))
    signal.raise_signal(signal.SIGUSR1)
    watched.launcher.close()
    watched.run()
    assert sorted(watched.processes.passed_on) == [signal.SIGUSR1, signal.SIGUSR2]


def test_the_end_of_the_orders_is_no_request(watched):
    watched.launcher.close()
    assert "lost its launcher" in watched.run().failure
    assert watched.processes.stopped == [(StopCause.ABANDONED, signal.SIGTERM)]


def test_an_abandoned_node_has_lost_its_launcher(watched):
    watched.launcher.write(line(StopCommand(15, StopCause.ABANDONED)))
    end = watched.run()
    assert "lost its launcher" in end.failure
    assert watched.processes.stopped == [(StopCause.ABANDONED, signal.SIGTERM)]


def test_losing_the_coordinator_means_losing_the_launcher(watched):
    """Its stdin may stay open: the process that holds it may have been stopped."""
    watched.interrupts.coordinator_lost()
    assert watched.run().exit_code == 70
    assert watched.processes.stopped == [(StopCause.ABANDONED, signal.SIGTERM)]


def test_words_that_are_no_order_are_passed_over(watched):
    watched.launcher.write(b"{}\n" + line(StopCommand(15)))
    assert watched.run() == End(None, None)


def test_a_dead_launcher_ends_its_agent_immediately():
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "wb", buffering=0) as launcher:
        launcher.write(encode_line(NodeSettings("127.0.0.1:9", "ab" * 32, "here", ("lo",))))
        launcher.close()
        assert main(reader) == 75
