"""A node's part, in this process: a real coordinator, and no agent."""

import json
import queue
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from patience import within

from tfcollective.agent.config import AgentConfig, Order, StopCommand
from tfcollective.agent.policy import StopCause
from tfcollective.clock import Deadline
from tfcollective.codec import encode_line
from tfcollective.control.auth import new_key
from tfcollective.control.client import CoordinatorClient, UnprovenReplyError
from tfcollective.control.protocol import NODES
from tfcollective.control.server import CoordinatorServer, ServerOptions
from tfcollective.errors import ConfigError, CoordinatorError
from tfcollective.launch.nodes import node_side
from tfcollective.launch.nodes.protocol import NodeSettings, beat_key, orders_key, refusal_line
from tfcollective.tasks import workers


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


def settings(server, key, patience=60.0):
    return NodeSettings(str(server.endpoint), key.hex(), "here", ("lo",), patience=patience)


ORDER = encode_line(AgentConfig("job", "", "", (), "")).decode()


def test_what_goes_wrong_before_there_is_an_agent_reaches_the_launcher(server, client, key, monkeypatch):
    def fail(*arguments):
        raise ConfigError("the runtime directory is everybody's")

    monkeypatch.setattr(node_side, "_run", fail)
    client.put(orders_key(0), [ORDER])
    with pytest.raises(ConfigError, match="everybody's"):
        node_side.serve(settings(server, key))
    said = client.get(beat_key(0)).value
    assert said == {"ended": True, "failure": "the runtime directory is everybody's", "signal": None}


def test_orders_that_are_none_reach_the_launcher(server, client, key):
    client.put(orders_key(0), [json.dumps({"workers": 1})])
    with pytest.raises(ConfigError, match="configuration cannot be read"):
        node_side.serve(settings(server, key))
    assert "configuration cannot be read" in client.get(beat_key(0)).value["failure"]


def test_the_key_of_the_next_launcher_is_taken(server, client, key, tmp_path, monkeypatch):
    """A launcher that was killed has left its file; the next one replaces it."""
    path = tmp_path / "key"
    refused = threading.Event()
    monkeypatch.setattr(node_side._LOG, "warning", lambda *arguments: refused.set())
    stale = new_key()
    path.write_text(stale.hex())
    path.chmod(0o600)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(node_side._enroll(settings(server, stale), "127.0.0.1", path)), daemon=True
    )
    thread.start()
    assert refused.wait(within(30))
    path.unlink()
    with pytest.raises(ConfigError):
        node_side.read_key(node_side.Settings(key_file=str(path)))
    path.touch(mode=0o600)
    path.write_text(key.hex())
    thread.join(within(30))
    ((newest, number),) = found
    assert (newest.key, number) == (key.hex(), 0)
    assert [one["name"] for one in client.get(NODES).value] == ["here"]


def test_a_key_that_stays_wrong_is_told(server, tmp_path):
    stale = new_key()
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text(stale.hex())
    for key_file in (path, None):
        with pytest.raises(UnprovenReplyError, match="does not prove the job key"):
            node_side._enroll(settings(server, stale, patience=0.0), "127.0.0.1", key_file)


def test_a_launcher_that_refuses_is_told_as_it_says(server, client, key):
    client.put(orders_key(0), [refusal_line("not needed").decode()])
    with pytest.raises(ConfigError, match="not needed"):
        node_side.serve(settings(server, key))


def test_its_connections_end_with_it(server, client, key, monkeypatch):
    made, make = [], node_side._client
    monkeypatch.setattr(node_side, "_client", lambda settings: made.append(make(settings)) or made[-1])
    client.put(orders_key(0), [refusal_line("not needed").decode()])
    with pytest.raises(ConfigError, match="not needed"):
        node_side.serve(settings(server, key))
    server.close()  # ends the wait for further orders
    deadline = Deadline.after(within(20))
    while not all(one.closed for one in made) and not deadline.expired():
        time.sleep(0.01)
    assert [one.closed for one in made] == [True, True, True]


def test_no_orders(server, key):
    with pytest.raises(CoordinatorError, match=r"given no orders within 0\.5 s"):
        node_side.serve(settings(server, key, patience=0.5))


class Agent:
    """Notes what it is asked to do."""

    def __init__(self):
        self.sent, self.stopped, self.said = [], [], threading.Event()

    def send(self, command):
        self.sent.append(command)

    def stop(self, command):
        self.stopped.append(command)
        self.said.set()

    def request_stop(self, number):
        self.stopped.append(StopCommand(number))


@pytest.fixture
def relay():
    agent, orders = Agent(), queue.SimpleQueue()
    relay = node_side._Relay(orders, agent)
    relay.start()
    yield SimpleNamespace(relay=relay, agent=agent, orders=orders)
    orders.put(None)


def test_a_signal_that_the_launcher_has_not_asked_for_is_told(relay):
    relay.relay.stop(signal.SIGTERM)
    relay.relay.stop(signal.SIGHUP)
    assert relay.agent.stopped == [StopCommand(signal.SIGTERM), StopCommand(signal.SIGHUP)]
    assert relay.relay.stopped_by == "SIGTERM"


def test_a_signal_after_the_launchers_order_is_no_news(relay):
    order = StopCommand(signal.SIGTERM, StopCause.ELSEWHERE)
    relay.orders.put(encode_line(Order.of(order)))
    assert relay.agent.said.wait(within(20))
    relay.relay.stop(signal.SIGTERM)
    assert relay.agent.stopped == [order, StopCommand(signal.SIGTERM)]
    assert relay.relay.stopped_by is None


def test_the_end_of_the_orders_is_no_request(relay):
    relay.orders.put(None)
    assert relay.agent.said.wait(within(20))
    assert relay.agent.stopped == [StopCommand(signal.SIGTERM, StopCause.ABANDONED)]
    assert relay.relay.launcher_gone


def test_the_last_word_names_the_signal(server, client, key, monkeypatch):
    monkeypatch.setattr(node_side, "_run", lambda *arguments: node_side._End(None, "SIGTERM"))
    client.put(orders_key(0), [ORDER])
    assert node_side.serve(settings(server, key)) == 128 + signal.SIGTERM
    assert client.get(beat_key(0)).value == {"ended": True, "failure": None, "signal": "SIGTERM"}
