"""Waiting for nodes: which ones count, which are released, and how missing ones are reported."""

import itertools
import threading
import time
from dataclasses import replace

import pytest
from fake_nodes import come, refusal
from launching import until
from time_limits import within

from tfcollective._base.errors import LaunchError, RendezvousError
from tfcollective._base.job_keys import new_key
from tfcollective._base.tasks import workers
from tfcollective._base.timing import TIMING
from tfcollective._control.client.client import CoordinatorClient, CoordinatorUnreachableError
from tfcollective._control.messages import Enroll, ListNodes
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._control.store_keys import end_key, item_key, orders_key
from tfcollective._control.wire.protocol import ServerOptions
from tfcollective._launch.nodes.gather import all_enrolled, follow_arrivals, gather, turn_away
from tfcollective._launch.nodes.provider import Arrival, Went
from tfcollective._testing.provider import FakeProvider

NAMED = {"units": "containers"}
KINDS = {"slots": "int", "ports": "array", "host": "str"}
JOINING = {"arrival": Arrival.OPEN}


@pytest.fixture
def client():
    key = new_key()
    options = ServerOptions("job", key, workers(1), 100.0)
    with CoordinatorServer(options) as server, CoordinatorClient(server.endpoint, key) as client:
        yield client


def test_the_launcher_keeps_naming_missing_agents(client, monkeypatch, capsys):
    monkeypatch.setattr("tfcollective._launch.nodes.gather.TIMING", replace(TIMING, remind=0.0))
    come(client, "a")
    with pytest.raises(RendezvousError):
        gathered(client, ["a", "b"], FakeProvider(advice=". Open the firewall"), 0.3)
    line = f"tfcollective: waiting at {client.endpoint}: 1 of 2 agents are here; missing: b. Open the firewall\n"
    assert capsys.readouterr().err.startswith(line)


@pytest.fixture
def unsteady(client):
    """Another client, which loses every second answer."""

    class Unsteady(CoordinatorClient):
        calls = itertools.count()

        def _exchange(self, path, data, wait):
            if next(self.calls) % 2:
                raise CoordinatorUnreachableError("no answer")
            return super()._exchange(path, data, wait)

    access = client._access
    with Unsteady(access.endpoint, access.key) as other:
        yield other


def gathered(client, names, provider, timeout=60.0, host_timeout=60.0, **options):
    return [one.name for one in gather(client, provider, names, timeout=timeout, host_timeout=host_timeout, **options)]


def test_agents_that_have_died_do_not_count(client):
    (gone,) = come(client, "a")
    client.put(end_key(gone), {"failure": None, "signal": None})
    with pytest.raises(RendezvousError, match=r"^0 of 2 agents came within 0\.3 s; here: none; gone again: a$"):
        gathered(client, ["", ""], FakeProvider(**JOINING), 0.3)


def test_silent_agents_do_not_count(client):
    come(client, "a")
    with pytest.raises(RendezvousError, match="here: none; gone again: a"):
        gathered(client, ["", ""], FakeProvider(**JOINING), 0.3, 0.0)  # no silence is short enough
    come(client, "b")
    assert gathered(client, ["", ""], FakeProvider(**JOINING)) == ["a", "b"]  # all are new to a new wait


def test_an_agent_of_another_version_is_skipped(client):
    (other,) = come(client, "a", version="0")
    come(client, "b")
    assert gathered(client, [""], FakeProvider(**JOINING)) == ["b"]
    assert "has tfcollective 0" in refusal(client, other)


@pytest.mark.parametrize("wrong", [{"slots": "two"}, {"ports": {}}, {"host": 7}])
def test_an_agent_with_unreadable_facts_is_skipped(client, wrong, capfd):
    odd = client.call(Enroll("o" * 32, {"name": "odd", "host": "odd", **wrong})).number
    come(client, "b")
    assert gathered(client, [""], FakeProvider(**JOINING)) == ["b"]
    (field,) = wrong
    assert f"what an agent says of its node cannot be read: Expected `{KINDS[field]}" in refusal(client, odd)
    assert f"at `$.{field}`" in refusal(client, odd)
    assert "tfcollective: refused an agent on " in capfd.readouterr().err


def test_an_irreplaceable_node_with_unreadable_facts_fails(client):
    (good,) = come(client, "a")
    client.call(Enroll("o" * 32, {"name": "b", "host": "b", "slots": "two"}))
    with pytest.raises(LaunchError, match=r"not all hosts can take part:\n  what an agent says of its node"):
        gathered(client, ["a", "b"], FakeProvider())
    assert "not all hosts can take part" in refusal(client, good)


def test_a_late_unreadable_agent_stops_no_other(client):
    found = []
    follower = threading.Thread(target=follow_arrivals, args=(client, (), found.append))
    follower.start()
    client.call(Enroll("o" * 32, {"slots": []}))
    come(client, "b")
    until(lambda: len(found) == 2)
    assert ["slots" in one.unreadable for one in found] == [True, False]
    client.close()
    follower.join(within(60))


def test_an_irreplaceable_node_of_another_version_fails(client):
    (good,) = come(client, "a")
    come(client, "b", version="0")
    with pytest.raises(LaunchError, match="not all hosts can take part:\n  b has tfcollective 0"):
        gathered(client, ["a", "b"], FakeProvider())
    assert "not all hosts can take part" in refusal(client, good)


def test_agents_that_come_too_late_are_released(client):
    early, second = come(client, "a", "b")
    assert gathered(client, [""], FakeProvider(**JOINING)) == ["a"]
    turn_away(client, FakeProvider(**JOINING), [one for one in all_enrolled(client) if one.number == early])
    assert "this one is not needed" in refusal(client, second)
    (late,) = come(client, "c")
    assert "this one is not needed" in refusal(client, late)
    assert client.get(item_key(orders_key(early), 0)) is None


def test_nothing_is_left_of_agents_that_were_refused(client):
    """Something may start them again and again."""
    before = set(threading.enumerate())
    turn_away(client, FakeProvider(**JOINING), ())
    for number in come(client, *"abcdefgh"):
        assert "this one is not needed" in refusal(client, number)
    until(lambda: {one.name for one in set(threading.enumerate()) - before} <= {"tfc-door", "tfc-coordinator"})


def test_a_coordinators_short_outage_is_outlasted(client, unsteady):
    come(client, "a", "b")
    assert gathered(unsteady, ["", ""], FakeProvider(**JOINING)) == ["a", "b"]
    turn_away(unsteady, FakeProvider(**JOINING), all_enrolled(unsteady))
    for name in "cde":  # each with a question of its own
        (late,) = come(client, name)
        assert "this one is not needed" in refusal(client, late)


def test_a_stop_ends_waiting_for_a_coordinator(client):
    client.wait = lambda *unused, **more: (_ for _ in ()).throw(CoordinatorUnreachableError("no answer"))
    assert gathered(client, [""], FakeProvider(**JOINING), stopped=lambda: True) == []


def test_a_repeated_name_is_refused_and_skipped(client):
    _, second = come(client, "worker-0", "worker-0x")
    client.call(Enroll("f" * 32, client.call(ListNodes(0, 0.0)).nodes[0].facts))
    with pytest.raises(RendezvousError, match=r"^1 of 2 containers came within 1\.5 s; missing: worker-1$"):
        gathered(client, ["worker-0", "worker-1"], FakeProvider(**NAMED), 1.5)
    assert "worker-0x is not a node of this job" in refusal(client, second)
    assert "worker-0 has come already" in refusal(client, 2)


def test_a_node_that_ends_meanwhile_ends_the_wait(client):
    come(client, "a")
    provider = FakeProvider()
    provider.happens = [Went("b", "exited with code 70", "the end of its log:\n  x")]
    with pytest.raises(LaunchError, match=r"^the agent on b exited with code 70 before the job had begun; the end of"):
        gathered(client, ["a", "b"], provider)


def test_missing_nodes_are_reported_with_advice(client):
    provider = FakeProvider(advice=". Open the firewall")
    with pytest.raises(RendezvousError, match=r"missing: b\. Open the firewall$"):
        gathered(client, ["b"], provider, 0.1)


def test_a_request_to_stop_ends_the_wait(client):
    come(client, "a")
    began = time.monotonic()
    assert gathered(client, ["a", "b"], FakeProvider(), stopped=lambda: time.monotonic() > began + 0.2) == ["a"]


def test_enough_nodes_in_time_begin_the_job(client, capfd):
    come(client, "a")
    asked = []

    def enough(here):
        asked.append([one.name for one in here])
        return True

    assert gathered(client, ["a", "b"], FakeProvider(**NAMED), 0.3, enough=enough) == ["a"]
    assert asked == [["a"]]  # not before the time is over
    err = capfd.readouterr().err
    assert "1 of 2 containers came within 0.3 s; missing: b; the job begins without the others" in err
