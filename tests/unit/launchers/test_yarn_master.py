"""What the master asks skein for, and what it says of containers, without YARN."""

from types import SimpleNamespace

from manual_clock import ManualClock
from tfcollective_launchers.yarn.application import Amount, Request
from tfcollective_launchers.yarn.master import SkeinPlatform
from tfcollective_launchers.yarn.skein_client import ENDPOINT_KEY

from tfcollective.clock import SYSTEM_CLOCK
from tfcollective.launch.provider import NodeFacts, NodeSettings
from tfcollective.timing import TIMING

WANTED = [Request(f"worker-{index}", "worker", Amount(4096, 1), "", 1) for index in range(3)]


class Application:
    """skein's, with containers by state."""

    def __init__(self, **states):
        self.kv, self.states, self.asked = {}, states, 0

    def get_containers(self, states):
        self.asked += 1
        return [self.container(name, state) for state in states for name in self.states.get(state, ())]

    def container(self, name, state):
        return SimpleNamespace(
            service_name=name,
            state=state,
            exit_message="it took too much memory" if state == "FAILED" else "",
            yarn_node_http_address="",
            yarn_container_id="c",
        )


def platform(clock=SYSTEM_CLOCK, **states):
    app = Application(**states)
    return app, SkeinPlatform(app, WANTED, clock, end_known=0.0)


def test_containers_and_submitter_find_the_coordinator():
    app, made = platform()
    made.request([NodeSettings("10.0.0.1:5", "ab", request.name) for request in WANTED])
    assert app.kv == {ENDPOINT_KEY: b"10.0.0.1:5"}


def test_the_end_of_a_container_is_an_event_once_and_asked_for_seldom():
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


def test_a_container_that_is_over_is_explained_as_far_as_is_known():
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
