"""Nodes that are asked for while a job runs: which ones count, and which are given back."""

import platform
import queue
import threading
from types import SimpleNamespace

import pytest
from fake_nodes import come, refusal
from launching import until
from time_limits import within

from tfcollective._base.codec import decode, to_document
from tfcollective._base.job_keys import new_key
from tfcollective._base.tasks import workers
from tfcollective._base.version import __version__
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import Enroll
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.store_keys import end_key
from tfcollective._control.wire.protocol import ServerOptions
from tfcollective._launch.agent.protocol import FirstOrder, NodeSettings
from tfcollective._launch.nodes.node_scaler import NodeScaler
from tfcollective._launch.nodes.provider import Arrival, NodeFacts, NodeKind, Refill, Went
from tfcollective._launch.plan.hosts import Host
from tfcollective._testing.provider import FakeProvider


@pytest.fixture
def client():
    key = new_key()
    options = ServerOptions("job", key, workers(1), 100.0)
    with (
        CoordinatorServer(options) as server,
        CoordinatorClient(server.endpoint, key, connections=4) as client,
    ):
        yield client


def enroll(client, instance):
    """The agent of this instance of the node `b` comes; its number."""
    facts = NodeFacts(name="b", instance=instance, version=__version__, python=platform.python_version())
    return client.call(Enroll((instance * 32)[:32], to_document(facts))).number


class Platform(FakeProvider):
    """Each request brings an agent on the next of these machines; "": it never comes."""

    def __init__(self, client, *machines):
        super().__init__(refill=Refill.RENEWED, kind=NodeKind.LENT)
        self.client, self.machines, self.here = client, list(machines), ""
        self.numbers = []

    def request(self, nodes):
        super().request(nodes)
        self.here = self.machines.pop(0)
        if self.here:
            instance = f"{nodes[0].name}-{len(self.requested)}"
            self.numbers.append(enroll(self.client, instance))

    def machine(self, name):
        return self.here


class Agents:
    def __init__(self, *earlier):
        self.all = tuple(SimpleNamespace(facts=NodeFacts(name="b", instance=one)) for one in earlier)
        self.added = []

    def add(self, node):
        self.added.append(node)
        return True


@pytest.fixture
def made_on(client):
    """Returns the scaler of a job on a platform."""
    made = []

    def make(platform, agents, host_timeout=60.0):
        spec = SimpleNamespace(grace=1.0, host_timeout=host_timeout)
        job = SimpleNamespace(
            spec=spec, scratch_dir="", agent_config=lambda workers: NodeFacts(), watch=lambda *unused: None
        )
        made.append(NodeScaler(job, client, platform, agents, NodeSettings("h:1", "ab", "a", timeout=60.0)))
        return made[-1]

    yield make
    for scaler in made:
        scaler.close()


@pytest.fixture
def opened(made_on):
    """Asks for the node `b` on such a platform; what has come of it, as a queue."""

    def begin(platform, agents, avoid=()):
        answers = queue.SimpleQueue()
        scaler = made_on(platform, agents)
        scaler.open("b", 1, answers.put, lambda: avoid)
        return scaler, answers

    return begin


@pytest.fixture(autouse=True)
def no_orders(monkeypatch):
    """What a node is given is none of these tests' business."""
    monkeypatch.setattr("tfcollective._launch.nodes.live.Node.begin", lambda *unused: None)


def test_a_node_that_has_come_is_waited_for(client, opened):
    agents = Agents()
    _, answers = opened(Platform(client, "m1"), agents)
    node = answers.get(timeout=within(20))
    assert agents.added == [node]
    assert node.facts.instance == "b-1"


def test_an_avoided_machines_node_is_given_back(client, opened):
    cluster = Platform(client, "m1", "m1", "m2")
    _, answers = opened(cluster, Agents(), ["m1"])
    assert answers.get(timeout=within(20)).facts.instance == "b-3"
    assert cluster.released == ["b", "b"]
    assert "another machine than m1 is wanted" in refusal(client, cluster.numbers[0])


def test_an_avoided_machine_is_a_last_resort(client, opened, caplog):
    cluster = Platform(client, *["m1"] * 9)
    _, answers = opened(cluster, Agents(), ["m1"])
    assert answers.get(timeout=within(40)).facts.instance == "b-4"
    assert "b is taken on m1 though ranks were lost there" in caplog.text


def test_an_earlier_nodes_end_is_ignored(client, opened):
    cluster = Platform(client, "")
    scaler, answers = opened(cluster, Agents("b-0"))
    until(lambda: cluster.requested)
    scaler.went(Went("b", "was ended", instance="b-0"))
    enroll(client, "b-1")
    assert answers.get(timeout=within(20)).facts.instance == "b-1"


def test_an_early_end_is_an_answer(client, opened):
    cluster = Platform(client, "")
    scaler, answers = opened(cluster, Agents())
    until(lambda: cluster.requested)
    stop = threading.Event()

    def tell():
        while not stop.wait(0.05):  # what comes before the request has been made is of an earlier one
            scaler.went(Went("b", "was ended (exit code 1)", instance="b-1"))

    threading.Thread(target=tell, daemon=True).start()
    answer = answers.get(timeout=within(20))
    stop.set()
    assert "was ended (exit code 1) before it had enrolled" in answer
    assert cluster.released == ["b"]


# ---- agents that come by themselves ----------------------------------------------------------------------------------


@pytest.fixture
def followed(client, made_on):
    """Follows the agents that come to a job that has one already; what is taken in, as a queue."""
    (known,) = come(client, "a")
    agents, arrived = Agents(), queue.SimpleQueue()
    scaler = made_on(FakeProvider(arrival=Arrival.OPEN), agents)
    scaler.follow([NodeFacts(number=known)], lambda host, node: arrived.put((host, node)))
    return SimpleNamespace(scaler=scaler, agents=agents, arrived=arrived)


def test_a_joining_agent_brings_its_slots(client, followed):
    come(client, "b", slots=3)
    host, node = followed.arrived.get(timeout=within(20))
    assert host == Host("b", 3)
    assert followed.agents.added == [node]


def test_an_agent_of_another_version_is_refused(client, followed):
    (number,) = come(client, "b", version="0.0.0")
    assert "b has tfcollective 0.0.0" in refusal(client, number)
    come(client, "c")
    assert followed.arrived.get(timeout=within(20))[0] == Host("c", 1)


def test_an_agent_that_has_gone_is_ignored(client, followed, made_on):
    """It may have come, and ended, before the job had begun: then the job does not know it, either."""
    agents, arrived = Agents(), queue.SimpleQueue()
    (number,) = come(client, "b")
    followed.arrived.get(timeout=within(20))
    client.put(end_key(number), {"failure": None, "signal": None})
    scaler = made_on(FakeProvider(arrival=Arrival.OPEN), agents)
    scaler.follow([], lambda host, node: arrived.put(host.name))
    come(client, "c")
    assert [arrived.get(timeout=within(20)) for _ in range(2)] == ["a", "c"]
    assert [node.facts.name for node in agents.added] == ["a", "c"]


def test_an_agent_killed_before_admission_has_ended(client, made_on):
    """It does not say so itself, and the coordinator would remember it for as long as the job runs."""
    scaler = made_on(FakeProvider(arrival=Arrival.OPEN), Agents(), host_timeout=0.0)
    scaler.follow([], lambda host, node: pytest.fail(f"{host} was taken in"))
    (number,) = come(client, "b")
    assert client.wait(end_key(number), timeout=within(20)) is not None


def test_an_agent_silent_before_admission_may_return(client, made_on):
    """It would wait for its first order until the start timeout, and could not take part."""
    scaler = made_on(FakeProvider(arrival=Arrival.OPEN), Agents(), host_timeout=0.0)
    scaler.follow([], lambda host, node: pytest.fail(f"{host} was taken in"))
    (number,) = come(client, "b")
    order = decode(refusal(client, number).encode(), FirstOrder, "the order")
    assert (order.refused, order.again) == ("it was silent for too long", True)


def test_an_agent_after_the_job_is_refused(client, followed):
    followed.scaler.close()
    (number,) = come(client, "b")
    assert "the job is over" in refusal(client, number)
    assert followed.arrived.empty()


def test_an_agent_after_all_others_is_finished(client, followed):
    followed.agents.add = lambda node: False
    (number,) = come(client, "b")
    assert '"finish": {}' in refusal(client, number)
    assert followed.arrived.empty()
