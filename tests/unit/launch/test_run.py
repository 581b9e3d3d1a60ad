"""A job on nodes: it requests them, waits for them, sends them their orders and releases them."""

import signal
from dataclasses import replace

import pytest
from fake_nodes import come, refusal

from tfcollective._base.codec import decode
from tfcollective._base.errors import ConfigError, RendezvousError
from tfcollective._base.failures import ExitReason
from tfcollective._base.task_specs import TaskSpec, trainers_of
from tfcollective._control.store_keys import end_key
from tfcollective._launch.agent.protocol import AgentConfig, Order
from tfcollective._launch.nodes.gather import all_enrolled
from tfcollective._launch.nodes.provider import Arrival, NodeKind, Refill, Went
from tfcollective._launch.plan.hosts import parse_hosts, share_out
from tfcollective._launch.plan.planner import plan_hosts
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.run import Assignment, by_name, client_of, run_on_nodes
from tfcollective._launch.running.job import Job
from tfcollective._testing.provider import FakeProvider

SPEC = JobSpec(("train",), 3, hosts=parse_hosts("a:2,b:1"))
PLAN = plan_hosts(SPEC, share_out(SPEC.hosts, 3), {})


@pytest.fixture
def job():
    with Job(SPEC, PLAN) as job:
        yield job


@pytest.fixture
def client(job):
    with client_of(job, 3) as client:
        yield client


class Here(FakeProvider):
    """Nodes that come at once, and end as soon as they have their orders."""

    def __init__(self, client, names=("a", "b"), **attributes):
        super().__init__(**attributes)
        self.client, self.names, self.orders_of = client, names, {}

    def request(self, nodes):
        super().request(nodes)
        for number, name in zip(come(self.client, *self.names), self.names, strict=True):
            self.orders_of[name] = Pipe(self.client, number)

    def orders(self, name):
        return self.orders_of[name]


class Pipe:
    """To a node that ends at its first order to stop, or at once."""

    def __init__(self, client, number):
        self.client, self.key, self.lines = client, end_key(number), []

    def __call__(self, line):
        self.lines.append(line)
        if len(self.lines) == 1:
            self.client.put(self.key, {"failure": None, "signal": None})


def requests(job, *names, timeout=60.0):
    return [job.node_settings(name, timeout) for name in names]


def test_every_node_gets_its_part(job, client):
    provider = Here(client)
    ran = run_on_nodes(job, client, provider, requests(job, "a", "b"), by_name(PLAN))
    assert [one.name for one in provider.requested] == ["a", "b"]
    configs = [decode(provider.orders_of[name].lines[0], AgentConfig, "it") for name in "ab"]
    assert [[worker.rank for worker in config.workers] for config in configs] == [[0, 1], [2]]
    assert "has reported how rank 0 (worker:0), rank 1 (worker:1), rank 2" in ran.outcome.agent_failure
    assert [node.facts.name for node in ran.nodes] == ["a", "b"]
    assert all(node.ended is not None for node in ran.nodes)


def test_a_node_without_a_part_is_released(job, client):
    provider = FakeProvider(arrival=Arrival.COUNTED)
    numbers = come(client, "a", "b")

    def assign(found):
        client.put(end_key(numbers[0]), {"failure": None, "signal": None})
        return Assignment(PLAN, ((found[0], PLAN.processes), (found[1], ())))

    run_on_nodes(job, client, provider, requests(job, "", ""), assign)
    assert "there are fewer ranks than agents" in refusal(client, numbers[1])


def test_a_signal_that_came_earlier_begins_nothing(job, client):
    (number,) = come(client, "a")
    ran = run_on_nodes(job, client, FakeProvider(), requests(job, "a"), by_name(PLAN), earlier=[signal.SIGTERM])
    assert ran.outcome.stopped_by == signal.SIGTERM
    assert ran.nodes == ()
    assert "the job was stopped before it began" in refusal(client, number)


def test_a_signal_before_the_beginning_is_kept(job, client):
    provider = Here(client)

    def assign(found):
        signal.raise_signal(signal.SIGTERM)
        return by_name(PLAN)(found)

    ran = run_on_nodes(job, client, provider, requests(job, "a", "b"), assign, stop_signals=[signal.SIGTERM])
    assert ran.outcome.stopped_by == signal.SIGTERM
    for name in "ab":
        assert decode(provider.orders_of[name].lines[1], Order, "it").stop.signal == signal.SIGTERM


def test_a_providers_news_ends_the_job(job, client):
    provider = FakeProvider(kind=NodeKind.LENT)
    come(client, "a", "b")

    def assign(found):
        provider.happens = [Went("b", "was ended (exit code 137)"), Went("a", "was ended, too")]
        return by_name(PLAN)(found)

    outcome = run_on_nodes(job, client, provider, requests(job, "a", "b"), assign).outcome
    assert outcome.agent_failure in ("the agent on a was ended, too", "the agent on b was ended (exit code 137)")
    assert outcome.host_lost


def test_nodes_that_do_not_come(job, client):
    provider = FakeProvider()
    with pytest.raises(RendezvousError, match=r"0 of 1 agents came within 0\.1 s; missing: a"):
        run_on_nodes(job, client, provider, requests(job, "a", timeout=0.1), by_name(PLAN))


# ---- elastic jobs of which not all nodes come ------------------------------------------------------------------------

RENEWS = {"refill": Refill.RENEWED, "kind": NodeKind.LENT}


@pytest.mark.parametrize(
    ("least", "came", "attributes"),
    [
        (2, ("a",), RENEWS),
        (3, ("a",), RENEWS),
        (2, ("b",), RENEWS),
        (2, ("a",), {"arrival": Arrival.OPEN}),
        (2, ("a",), {"refill": Refill.SAME}),  # elsewhere a node that has not come will not
        (None, ("a",), RENEWS),
    ],
)
def test_enough_nodes_may_begin_a_job(least, came, attributes):
    spec = replace(SPEC, min_proc=least)
    begins = least == 2 and came == ("a",) and attributes != {"refill": Refill.SAME}
    with Job(spec, PLAN) as job, client_of(job, 3) as client:
        provider = Here(client, came, **attributes)
        asked = requests(job, "a", "b", timeout=0.3)
        if not begins:
            with pytest.raises(RendezvousError, match="1 of 2 agents came within"):
                run_on_nodes(job, client, provider, asked, by_name(PLAN))
            return
        ran = run_on_nodes(job, client, provider, asked, by_name(PLAN))
        assert [node.facts.name for node in ran.nodes] == ["a"]
        assert [list(map(str, node.tasks)) for node in ran.nodes] == [["worker:0", "worker:1"]]
        (late,) = (one for one in job.view.tasks if str(one.task) == "worker:2")
        assert late.exit.reason is ExitReason.NOT_STARTED


def test_nodes_without_room_are_refused_with_reason(job, client):
    def assign(found):
        raise ConfigError("3 processes do not fit")

    provider = Here(client, arrival=Arrival.OPEN)
    provider.orders = lambda name: None
    with pytest.raises(ConfigError, match="do not fit"):
        run_on_nodes(job, client, provider, requests(job, "", ""), assign)
    numbers = [one.number for one in all_enrolled(client)]
    assert len(numbers) == 2
    assert all("3 processes do not fit" in refusal(client, number) for number in numbers)


def test_a_job_does_not_begin_without_its_evaluator():
    specs = {"worker": TaskSpec(1, 1, instances=2, min_instances=1), "evaluator": TaskSpec(1, 1)}
    spec = JobSpec(("train",), 2, hosts=parse_hosts("a:2"), task_specs=specs, tasks=trainers_of(specs))
    made = plan_hosts(spec, share_out(spec.hosts, 2), {})
    plan = replace(made, auxiliary_tasks=tuple(replace(one, host="e") for one in made.auxiliary_tasks))
    with Job(spec, plan) as job, client_of(job, 3) as client:
        provider = Here(client, ("a",), **RENEWS)
        with pytest.raises(RendezvousError, match="missing: e"):
            run_on_nodes(job, client, provider, requests(job, "a", "e", timeout=0.3), by_name(plan))
