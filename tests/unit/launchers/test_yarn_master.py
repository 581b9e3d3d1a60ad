"""What the master asks skein for, and what it says of containers, without YARN."""

import os
import subprocess
from types import SimpleNamespace

import psutil
import pytest
from tfcollective_launchers.yarn import logs
from tfcollective_launchers.yarn.application import Amount, Request
from tfcollective_launchers.yarn.master import SkeinPlatform, attempt_of
from tfcollective_launchers.yarn.skein_client import ATTEMPT_KEY, ENDPOINT_KEY

from tfcollective._base.clock import SYSTEM_CLOCK
from tfcollective._base.errors import LaunchError
from tfcollective._base.timing import TIMING
from tfcollective._launch.nodes.provider import NodeFacts, NodeSettings
from tfcollective._testing.clock import ManualClock

WANTED = [Request(f"worker-{index}", "worker", Amount(4096, 1), "", 1) for index in range(3)]


class Application:
    """skein's, with containers by state at first."""

    def __init__(self, **states):
        self.kv, self.asked, self.broken = {}, 0, False
        self.containers, self.killed = [], []
        for state, names in states.items():
            for name in names:
                self.add_container(name).state = state

    def get_containers(self, states):
        self.asked += 1
        if self.broken:
            raise ValueError("skein is away")
        return [one for one in sorted(self.containers, key=lambda one: one.id) if one.state in states]

    def add_container(self, name):
        instance = sum(one.service_name == name for one in self.containers)
        self.containers.append(
            SimpleNamespace(
                id=f"{name}_{instance}",
                service_name=name,
                state="REQUESTED",
                yarn_node_http_address="",
                yarn_container_id=f"yarn-{name}-{instance}",
                exit_message="",
            )
        )
        return self.containers[-1]

    def kill_container(self, key):
        self.killed.append(key)
        self.becomes(key, "KILLED")

    def becomes(self, key, state, node=None):
        (container,) = (one for one in self.containers if one.id == key)
        container.state = state
        container.exit_message = "it took too much memory" if state == "FAILED" else ""
        if node is not None:
            container.yarn_node_http_address = f"{node}:8042"


@pytest.fixture(autouse=True)
def silent_nodes(monkeypatch):
    """Nodes whose web service says nothing."""
    monkeypatch.setattr(logs, "_get", lambda url: None)


def platform(clock=SYSTEM_CLOCK, **states):
    app = Application(**states)
    for container in app.containers:
        app.becomes(container.id, container.state)
    return app, SkeinPlatform(app, WANTED, clock, end_known=0.0)


def began(*states):
    """One whose job has begun, with containers in these states; afterwards it may be asked for others."""
    clock = ManualClock()
    app = Application()
    for number, state in enumerate(states):
        app.add_container(f"worker-{number}").state = state
    made = SkeinPlatform(app, WANTED, clock, end_known=0.0)
    made.request([settings(request.name) for request in WANTED])

    def news():
        clock.advance(TIMING.container_news)
        return [(event.name, event.instance) for event in made.events()]

    return app, made, news


def settings(name):
    return NodeSettings("10.0.0.1:5", "ab", name)


def test_containers_and_submitter_find_the_coordinator():
    app, made = platform()
    made.request([settings(request.name) for request in WANTED])
    assert app.kv == {ATTEMPT_KEY: b"1", ENDPOINT_KEY: b"10.0.0.1:5"}


def test_a_master_sees_that_skeins_process_has_gone():
    """What the containers report then is not how the job has ended."""
    process = subprocess.Popen(["sleep", "600"])
    made = SkeinPlatform(Application(), WANTED, skeins=psutil.Process(process.pid))
    assert not made.orphaned()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert made.orphaned()  # its parent has not yet seen that
    process.wait()
    assert made.orphaned()


@pytest.mark.parametrize(
    ("container", "attempt"),
    [
        ("container_1795254875820_0002_02_000001", 2),
        ("container_e17_1795254875820_0002_11_000001", 11),
        ("", 1),
    ],
)
def test_a_master_knows_how_many_were_before_it(container, attempt):
    assert attempt_of(container) == attempt


def test_a_containers_end_is_one_event():
    clock = ManualClock()
    app, made = platform(clock, FAILED=["worker-1"], RUNNING=["worker-0"])
    (event,) = made.events()
    assert (event.name, event.how, event.detail) == ("worker-1", "was ended (it took too much memory)", "")
    assert made.subject(NodeFacts(name="worker-1", host="h")) == "the container of worker-1 on h"
    assert made.events() == ()
    assert app.asked == 1
    clock.advance(TIMING.container_news)
    assert list(made.events()) == []
    assert app.asked == 2


def test_a_container_is_named_with_its_node():
    app, made = platform(RUNNING=["worker-1"])
    app.becomes("worker-1_0", "RUNNING", node="node7")
    made.events()
    facts = NodeFacts(name="worker-1", host="h", instance="yarn-worker-1-0")
    assert made.subject(facts) == "the container of worker-1 on node7"
    assert made.subject(NodeFacts(name="worker-1", host="h", instance="another")) == "the container of worker-1 on h"


def test_a_finished_container_is_explained_if_known():
    _, made = platform(FAILED=["worker-1"], KILLED=["worker-2"], RUNNING=["worker-0"])
    assert made.explain(NodeFacts(name="worker-1"), 15.0) == "was ended (it took too much memory)"
    assert made.explain(NodeFacts(name="worker-2"), 15.0) == "was ended"
    assert made.explain(NodeFacts(name="worker-2"), 0.0) is None  # its agent has said how
    assert made.explain(NodeFacts(name="worker-0"), 15.0) is None


def test_containers_that_have_not_come_are_distinguished():
    _, made = platform(RUNNING=["worker-0"])
    assert made.describe_missing(["worker-0", "worker-1"]) == (
        "YARN has not granted worker-1 (4096 MiB, 1 vcores); granted, but no agent has come from worker-0: see "
        "`tfcollective logs`"
    )


def test_a_container_that_has_gone_is_requested_again():
    app, made, news = began("RUNNING", "RUNNING")
    app.becomes("worker-1_0", "FAILED")
    assert news() == [("worker-1", "yarn-worker-1-0")]
    made.request([settings("worker-1")])
    assert [one.id for one in app.containers] == ["worker-0_0", "worker-1_0", "worker-1_1"]
    assert app.killed == []
    assert news() == []
    app.becomes("worker-1_1", "RUNNING")
    app.becomes("worker-1_1", "FAILED")
    assert news() == [("worker-1", "yarn-worker-1-1")]


def test_nothing_runs_twice_under_a_name():
    """skein learns late that a container has ended, and not at all that its agent is stopped."""
    app, made, news = began("RUNNING")
    made.request([settings("worker-0")])
    assert app.killed == ["worker-0_0"]
    assert [one.state for one in app.containers] == ["KILLED", "REQUESTED"]
    assert news() == []  # it was our doing


def test_requesting_another_container_drops_the_end():
    app, made, news = began("RUNNING")
    app.becomes("worker-0_0", "SUCCEEDED")
    made.request([settings("worker-0")])
    assert news() == []


def test_a_container_underway_is_not_requested_twice():
    app, made, _ = began("REQUESTED")
    made.request([settings("worker-0")])
    assert len(app.containers) == 1


def test_an_unneeded_container_is_always_ended():
    app, made, news = began("REQUESTED", "RUNNING", "FAILED")
    for name in ("worker-0", "worker-1", "worker-2"):
        made.release(name)
    assert app.killed == ["worker-0_0", "worker-1_0"]
    assert news() == [("worker-2", "yarn-worker-2-0")]


def test_a_containers_machine_is_the_newest():
    app, made, news = began("RUNNING")
    app.becomes("worker-0_0", "RUNNING", node="node1")
    assert made.machine("worker-0") == "node1"
    news()
    app.becomes("worker-0_0", "FAILED")
    news()
    assert made.machine("worker-0") == "node1"  # where it was
    made.request([settings("worker-0")])
    assert made.machine("worker-0") == ""  # not granted yet
    app.becomes("worker-0_1", "RUNNING", node="node2")
    assert made.machine("worker-0") == "node2"


def test_an_agent_is_explained_by_its_container():
    app, made, _ = began("FAILED")
    app.becomes("worker-0_0", "FAILED", node="node1")
    app.add_container("worker-0")
    app.becomes("worker-0_1", "RUNNING", node="node2")
    old, new = (NodeFacts(name="worker-0", instance=f"yarn-worker-0-{number}") for number in range(2))
    assert made.explain(old, 15.0) == "was ended (it took too much memory)"
    assert made.explain(new, 15.0) is None
    places = made.places()
    assert places["yarn-worker-0-0"][0] == "node1"
    assert places["yarn-worker-0-1"] == places["worker-0"]
    assert places["worker-0"][0] == "node2"


def test_an_unanswered_request_is_an_error():
    app, made, news = began("RUNNING")
    app.broken = True
    with pytest.raises(LaunchError, match="asking for containers: skein is away"):
        made.request([settings("worker-0")])
    made.release("worker-0")
    assert news() == []
    assert made.machine("worker-0") == ""
