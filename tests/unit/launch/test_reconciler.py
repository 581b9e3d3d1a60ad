"""What an elastic job starts and asks to leave, as its ranks end and its hosts come and go."""

import contextlib
import queue
import time
from types import SimpleNamespace

import pytest
from launching import until

from tfcollective._base.failures import ExceptionRecord, ExitReason, ExitRecord
from tfcollective._base.tasks import EVALUATOR, TaskKey, workers
from tfcollective._control.snapshot import WorldChange
from tfcollective._launch.agent.protocol import FinishCommand, LeaveCommand
from tfcollective._launch.elastic.reconciler import Reconciler
from tfcollective._launch.nodes.provider import Arrival, Refill
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.placement import Slot
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._testing.provider import FakeProvider

SIGTERM = 15


class Node:
    """One host's agent; keeps what it is ordered."""

    def __init__(self, name):
        self.facts = SimpleNamespace(name=name)
        self.ended = None
        self.began = time.monotonic()
        self.silent = False
        self.tasks = []
        self.orders = []
        self.started = []
        self.prepared = []

    def send(self, command):
        self.orders.append(command)

    def start(self, worker, slots):
        self.tasks.append(worker.task)
        self.started.append((str(worker.task), worker.local_rank, slots))

    def prepare(self, worker, slots, modules):
        self.prepared.append((worker.local_rank, slots, modules))

    @property
    def finished(self):
        return any(isinstance(one, FinishCommand) for one in self.orders)

    @property
    def asked(self):
        return [str(one.task) for one in self.orders if isinstance(one, LeaveCommand)]


class Platform(FakeProvider):
    """A provider on whose machines the nodes are, as a test names them."""

    def __init__(self):
        super().__init__(refill=Refill.SAME)
        self.machines = {}

    def machine(self, host):
        return self.machines.get(host, "" if self.refill is Refill.RENEWED else host)


class Scaler:
    """Has the agents come when a test says so."""

    def __init__(self):
        self.provider, self.wanted, self.avoid = Platform(), {}, tuple

    def open(self, host, slots, then, avoid):
        self.wanted[host], self.avoid = (slots, then), avoid

    def comes(self, host, answer=None):
        until(lambda: host in self.wanted)
        node = Node(host) if answer is None else answer
        self.wanted.pop(host)[1](node)
        return node


class Job:
    """An open elastic job of which nothing is reported but what it is given here."""

    def __init__(self, size, **options):
        self.exits = queue.SimpleQueue()
        self.spec = JobSpec(("x",), size, **{"min_proc": 1, **options})
        self.failed = False
        self.slow_modules = ()
        self.view = SimpleNamespace(
            members=tuple(workers(size)),
            leavers=frozenset(),
            tasks=(),
            generation=1,
            trained=False,
            changes=(),
            durations={},
        )
        self.dismissed, self.admitted, self.lost, self.closed = [], [], [], False
        self.changes = []

    def newcomer(self, task, rank, slot, place):
        return SimpleNamespace(task=task, rank=rank, local_rank=slot.number, place=f"{slot.host}", world=place)

    def admit(self, worker, send, change):
        self.admitted.append(worker)
        self.changes.append(change)

    def close_admission(self):
        self.closed = True

    def dismiss(self, task):
        self.dismissed.append(str(task))

    def note_lost(self, tasks):
        for task in tasks:
            self.lost.append(str(task))
            self.ends(str(task), None, reason=ExitReason.LOST)

    def note_unstarted(self, tasks):
        self.unstarted = [str(task) for task in tasks]

    def leaves(self, task, **more):
        self.view.leavers |= {task}
        self.ends(task, 0, **more)

    def ends(self, task, code, **more):
        self.exits.put(ExitRecord(task, 0, "node", 1, code, None, 1.0, **more))


@pytest.fixture
def began():
    """Begins a job on these hosts, whose agents are up and have a rank in each slot; ends all at the end."""
    with contextlib.ExitStack() as open_ones:

        def begin(*hosts, auxiliary=False, stopping=lambda: False, **options):
            job = Job(sum(slots for _, slots in hosts), **options)
            nodes, tasks = {}, iter(workers(job.spec.num_proc))
            for host, slots in hosts:
                node = Node(host)
                nodes.update({next(tasks): (node, Slot(host, number)) for number in range(slots)})
            if auxiliary:
                nodes[TaskKey(EVALUATOR, 0)] = (next(iter(nodes.values()))[0], None)
            wanted = [Host(*host) for host in hosts]
            scaler = Scaler()
            made = open_ones.enter_context(Reconciler(job, nodes, wanted, scaler, stopping))
            by_name = {node.facts.name: node for node, _ in nodes.values()}
            return SimpleNamespace(job=job, nodes=by_name, scaler=scaler, it=made)

        yield begin


def started(node):
    return [task for task, _, _ in node.started]


def test_a_replacement_ends_with_the_training(began):
    one = began(("a", 2))
    one.job.ends("worker:1", 3)
    until(lambda: one.nodes["a"].started == [("worker:2", 1, 2)])
    one.job.ends("worker:0", 0)
    until(lambda: one.job.dismissed == ["worker:2"])
    assert one.nodes["a"].finished
    until(lambda: one.job.closed)


@pytest.mark.parametrize("code", [0, 1])
def test_an_auxiliary_tasks_end_changes_no_training(began, code):
    one = began(("a", 2), auxiliary=True)
    one.job.ends("evaluator:0", code)
    one.job.ends("worker:1", 3)
    until(lambda: started(one.nodes["a"]) == ["worker:2"])
    assert not one.nodes["a"].finished


def test_agents_end_without_further_replacements(began):
    one = began(("a", 2))
    del one.job.failed
    one.job.ends("worker:1", 3)
    until(lambda: one.nodes["a"].finished)


def test_the_end_does_not_wait_for_news(began):
    job = Job(2)
    with Reconciler(job, {task: (Node("a"), Slot("a", task.index)) for task in workers(2)}, [Host("a", 2)], Scaler()):
        pass
    assert job.exits.empty()  # it was woken by what is put there at the end


def test_new_slots_get_ranks_new_hosts_agents(began):
    one = began(("a", 1), max_proc=4)
    one.it.found([Host("a", 2), Host("b", 3)])
    until(lambda: one.nodes["a"].started == [("worker:1", 1, 2)])
    assert one.scaler.wanted["b"][0] == 3
    b = one.scaler.comes("b")
    until(lambda: b.started == [("worker:2", 0, 3), ("worker:3", 1, 3)])  # 4 at most
    assert [worker.rank for worker in one.job.admitted] == [1, 2, 3]
    last = one.job.admitted[-1].world
    assert (last.rank, last.size, last.local_rank, last.local_size, last.cross_rank, last.cross_size) == (
        *(3, 4, 1, 2),
        *(1, 2),
    )


def test_consequences_of_one_change_carry_its_number(began):
    one = began(("a", 2), max_proc=9)
    one.it.found([Host("a", 1), Host("b", 2), Host("c", 1)])
    b = one.scaler.comes("b")
    until(lambda: len(b.started) == 2)
    one.job.ends("worker:2", 1)  # a loss is a change of its own
    until(lambda: len(b.started) == 3)
    c = one.scaler.comes("c")  # it has taken its time
    until(lambda: len(c.started) == 1)
    assert one.job.changes == [1, 1, 2, 1]
    assert [order.change for order in one.nodes["a"].orders] == [1]


def test_removed_slots_are_left_in_order(began):
    one = began(("a", 1), ("b", 3))
    one.it.found([Host("a", 1), Host("b", 1)])
    b = one.nodes["b"]
    until(lambda: b.asked == ["worker:2", "worker:3"])
    one.job.leaves("worker:3")
    one.job.ends("worker:2", None, reason=ExitReason.STOPPED)  # SIGTERM has ended it while it imported
    one.it.found([Host("a", 1), Host("b", 3)])
    until(lambda: started(b) == ["worker:4", "worker:5"])
    assert not one.nodes["a"].finished


def test_a_returning_host_gets_a_new_agent(began):
    one = began(("a", 1), ("b", 1))
    one.it.found([Host("a", 1)])
    b = one.nodes["b"]
    until(lambda: b.asked == ["worker:1"])
    assert not b.finished
    one.job.leaves("worker:1")
    until(lambda: b.finished)
    one.it.found([Host("a", 1), Host("b", 1)])
    b.ended = 1.0
    one.it.gone(b)
    again = one.scaler.comes("b")
    until(lambda: started(again) == ["worker:2"])


def test_the_last_member_stays_until_another_trains(began):
    one = began(("a", 2), max_proc=2)
    one.it.found([Host("b", 2)])
    a = one.nodes["a"]
    until(lambda: a.asked == ["worker:1"])
    one.job.leaves("worker:1")
    b = one.scaler.comes("b")
    until(lambda: started(b) == ["worker:2", "worker:3"])
    assert a.asked == ["worker:1"]
    members = (TaskKey("worker", 0), TaskKey("worker", 2))
    one.job.view = SimpleNamespace(members=members, leavers=frozenset(), tasks=(), generation=2, trained=False)
    one.job.exits.put(None)
    until(one.job.exits.empty)
    assert a.asked == ["worker:1"]  # worker:2 may have yet to take the state
    one.job.view.tasks = (SimpleNamespace(task=members[0], info={"generation": 2}),)
    until(lambda: a.asked == ["worker:1", "worker:0"])


def test_a_lost_hosts_ranks_use_free_slots(began):
    one = began(("a", 1), ("b", 1))
    one.it.found([Host("a", 1), Host("b", 1), Host("c", 1)])  # two at most are wanted: c is spare
    b = one.nodes["b"]
    b.ended = 1.0
    one.it.gone(b)
    c = one.scaler.comes("c")
    until(lambda: started(c) == ["worker:2"])
    assert one.job.lost == ["worker:1"]
    assert "b" not in one.scaler.wanted  # for the time being


def test_a_host_whose_agent_fails_is_avoided(began):
    one = began(("a", 1), max_proc=2, cooldown_range=(3600, 3600))
    one.it.found([Host("a", 1), Host("b", 1), Host("c", 1)])
    one.scaler.comes("b", "ssh cannot connect")
    c = one.scaler.comes("c")
    until(lambda: started(c) == ["worker:1"])
    assert "b" not in one.scaler.wanted


def test_too_few_ranks_are_reported_once(began, caplog):
    made = began(("a", 1), ("b", 1), min_proc=2, cooldown_range=(60, 60), elastic_timeout=7)
    made.job.ends("worker:1", 1)
    said = "ranks left: 1 of at least 2: training stands still, and the job ends if no others have come within 7 s"
    until(lambda: said in caplog.text)
    made.it.found([Host("a", 1), Host("b", 1)])
    made.it.found([Host("a", 1), Host("b", 1), Host("c", 1)])
    until(lambda: "c" in made.scaler.wanted)
    assert caplog.text.count("ranks left") == 1


def test_a_host_is_retried_after_its_cooldown(began):
    one = began(("a", 1), max_proc=2, cooldown_range=(1, 1))
    one.it.found([Host("a", 1), Host("b", 1)])
    one.scaler.comes("b", "ssh cannot connect")
    b = one.scaler.comes("b")  # asked for again
    until(lambda: started(b) == ["worker:1"])


def test_an_agent_stopping_ranks_gets_no_more(began):
    one = began(("a", 1), ("b", 1))
    a, b = one.nodes.values()
    one.job.ends("worker:1", None, reason=ExitReason.STOPPED)  # a platform has asked the agent on b to end
    one.it.found([Host("a", 2), Host("b", 1)])
    until(lambda: started(a) == ["worker:2"])
    assert not started(b)
    assert not a.finished


def test_a_preempted_slot_is_refilled_once_back(began):
    one = began(("a", 1), ("b", 1), max_proc=3)
    one.job.leaves("worker:1")
    one.it.found([Host("a", 2), Host("b", 1)])
    until(lambda: started(one.nodes["a"]) == ["worker:2"])
    assert not started(one.nodes["b"])
    one.it.found([Host("a", 2)])
    until(lambda: one.nodes["b"].finished)
    one.it.found([Host("a", 2), Host("b", 1)])
    one.nodes["b"].ended = 1.0
    one.it.gone(one.nodes["b"])
    again = one.scaler.comes("b")
    until(lambda: started(again) == ["worker:3"])


def test_nothing_starts_after_all_must_end(began):
    one = began(("a", 2), stopping=lambda: True)
    one.job.ends("worker:1", None, reason=ExitReason.STOPPED)
    until(lambda: one.nodes["a"].finished)
    assert not started(one.nodes["a"])


def test_an_agent_after_training_is_sent_away(began):
    one = began(("a", 1), max_proc=2)
    one.it.found([Host("a", 1), Host("b", 1)])
    until(lambda: "b" in one.scaler.wanted)
    one.job.ends("worker:0", 0)
    until(lambda: one.job.closed)
    b = one.scaler.comes("b")
    until(lambda: b.finished)
    assert not started(b)


def test_a_spare_follows_once_all_ranks_train(began):
    made = began(("a", 2))
    node = made.nodes["a"]
    made.job.view.members = ()
    made.job.slow_modules = ("tensorflow",)
    made.job.ends("worker:1", 3)
    until(lambda: node.started == [("worker:2", 1, 2)])
    assert not node.prepared  # a spare would only hold up the process that has just been started
    made.job.view.members = (TaskKey("worker", 0), TaskKey("worker", 2))
    made.job.exits.put(None)
    until(lambda: node.prepared == [(0, 2, ("tensorflow",))])


@pytest.mark.parametrize("options", [{"modules": ()}, {"modules": ("tensorflow",), "warm_spares": False}])
def test_a_spare_is_made_only_where_useful(began, options):
    modules = options.pop("modules")
    made = began(("a", 2), **options)
    node = made.nodes["a"]
    made.job.slow_modules = modules
    made.job.ends("worker:1", 3)
    until(lambda: node.started)
    made.job.view.members = (TaskKey("worker", 0), TaskKey("worker", 2))
    made.job.ends("worker:0", 0)
    until(lambda: node.finished)
    assert not node.prepared


def test_nothing_starts_while_rank_0_has_completed(began):
    made = began(("a", 2))
    made.job.view.trained = True
    made.job.ends("worker:1", 3)
    until(lambda: TaskKey("worker", 1) not in made.it._running)
    made.job.view.trained = False  # it trains again
    made.job.exits.put(None)
    until(lambda: started(made.nodes["a"]) == ["worker:2"])


@pytest.mark.parametrize("stopped", [True, False])
def test_leaving_a_stopped_job_is_not_orderly(began, stopped, caplog):
    made = began(("a", 2), stopping=lambda: stopped)
    made.job.leaves("worker:1")
    made.job.leaves("worker:0")
    until(lambda: made.nodes["a"].finished)
    assert ("worker:1 has left gracefully" in caplog.text) is not stopped


def test_nothing_is_replaced_after_rank_0_completed(began):
    made = began(("a", 2))
    made.job.view.trained = True
    made.job.ends("worker:1", 3)
    until(lambda: TaskKey("worker", 1) not in made.it._running)
    made.job.ends("worker:0", 0)
    until(lambda: made.nodes["a"].finished)
    assert not made.nodes["a"].started


def joined(generation, task, seconds_ago):
    """A world that this task came to so long ago."""
    return WorldChange(generation, 2, (), (TaskKey.parse(task),), 0.0, at=time.monotonic() - seconds_ago)


def test_ranks_with_long_training_are_replaced_immediately(began):
    made = began(("a", 2))
    made.job.view.durations["worker:1"] = 60.0
    made.job.ends("worker:1", 3)
    node = made.nodes["a"]
    until(lambda: started(node) == ["worker:2"])
    for number in range(2, 6):
        made.job.view.changes += (joined(number, f"worker:{number}", 60.0),)
        made.job.ends(f"worker:{number}", 3)
        until(lambda number=number: started(node)[-1] == f"worker:{number + 1}")


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_a_host_of_early_ends_is_blocked(began, caplog, seconds):
    made = began(("a", 2))
    made.job.ends("worker:1", 3)
    node = made.nodes["a"]
    until(lambda: started(node) == ["worker:2"])
    if seconds is not None:
        made.job.view.changes = (joined(2, "worker:2", seconds),)
    made.job.ends("worker:2", 3)
    until(lambda: "nothing is started there for 30 s" in caplog.text)
    assert started(node) == ["worker:2"]


def test_a_host_whose_ranks_raise_is_blocked(began, caplog):
    made = began(("a", 2), on_error="replace")
    error = ExceptionRecord("ValueError", "the data is rotten", "", 1.0)
    made.job.view.durations["worker:1"] = 60.0
    made.job.ends("worker:1", 1, exception=error)
    node = made.nodes["a"]
    until(lambda: started(node) == ["worker:2"])
    made.job.view.changes = (joined(2, "worker:2", 60.0),)
    made.job.ends("worker:2", 1, exception=error)
    until(lambda: "a has lost 2 ranks that raised an error: nothing is started there for 30 s" in caplog.text)
    assert started(node) == ["worker:2"]


def test_an_empty_slot_keeps_no_agent(began):
    made = began(("a", 1), ("b", 1))
    made.job.view.trained = True
    made.job.ends("worker:1", 3)
    made.job.ends("worker:0", 0, leaving=True)
    until(lambda: made.nodes["b"].finished)


def test_a_host_lost_before_starting_is_retried(began, caplog):
    made = began(("a", 1), ("b", 1))
    made.job.ends("worker:1", 3)
    b = made.nodes["b"]
    until(lambda: started(b) == ["worker:2"])
    b.ended = 1.0
    made.job.ends("worker:2", None, reason=ExitReason.NOT_STARTED)
    made.it.gone(b)
    until(lambda: "b has lost its agent: nothing is started there for 30 s" in caplog.text)


def test_nothing_starts_on_a_preempted_host(began):
    made = began(("a", 1), ("b", 1), max_proc=4)
    made.it.found([Host("a", 1), Host("b", 3), Host("c", 1)])
    b = made.nodes["b"]
    until(lambda: started(b) == ["worker:2", "worker:3"])
    made.job.leaves("worker:1", leaving=True)
    c = made.scaler.comes("c")
    until(lambda: started(c) == ["worker:4"])
    made.job.leaves("worker:2", leaving=True)
    made.job.leaves("worker:3", leaving=True)
    b.ended = 1.0
    made.it.gone(b)
    made.job.ends("worker:0", 0)
    until(lambda: made.nodes["a"].finished)
    assert started(b) == ["worker:2", "worker:3"]
    assert "b" not in made.scaler.wanted


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_leaving_rank_may_end_anyhow(began, code):
    made = began(("a", 2))
    made.it.found([Host("a", 1)])
    until(lambda: made.nodes["a"].asked == ["worker:1"])
    made.job.ends("worker:1", code, leaving=True)
    made.job.ends("worker:0", 3)
    until(lambda: started(made.nodes["a"]) == ["worker:2"])


def test_tasks_no_agent_started_are_reported():
    job = Job(2)
    node = Node("a")
    slots = {task: (node, Slot("a", number)) for number, task in enumerate(workers(2))}
    with Reconciler(job, slots, [Host("a", 2)], Scaler()):
        job.ends("worker:1", 3)
        until(lambda: started(node) == ["worker:2"])
        job.ends("worker:0", 0)
        until(lambda: node.finished)
    assert job.unstarted == ["worker:2"]


# ---- nodes that a platform puts on machines of its choice ------------------------------------------------------------


def on_machines(made, **machines):
    """The same job on a platform that gives another node for each that has gone."""
    made.scaler.provider.refill = Refill.RENEWED
    made.scaler.provider.machines = machines
    return made


def goes(made, name):
    """The container of this node is ended."""
    node = made.nodes[name]
    node.ended = 1.0
    made.it.gone(node)


def test_a_lost_container_is_requested_again_immediately(began):
    made = on_machines(began(("a", 1), ("b", 1)), a="m1", b="m1")
    made.nodes["b"].tasks = [TaskKey("worker", 1)]
    goes(made, "b")
    again = made.scaler.comes("b")
    until(lambda: started(again) == ["worker:2"])
    assert made.scaler.avoid() == frozenset()


def test_a_silent_machine_is_avoided(began, caplog):
    made = on_machines(began(("a", 1), ("b", 1)), a="m1", b="m2")
    made.nodes["b"].silent = True
    goes(made, "b")
    until(lambda: "b" in made.scaler.wanted)
    assert made.scaler.avoid() == {"m2"}
    assert "m2 has lost its agent: nothing is started there for 30 s" in caplog.text
    made.scaler.provider.machines["b"] = "m3"
    again = made.scaler.comes("b")
    until(lambda: started(again) == ["worker:2"])


def test_an_avoided_machine_starts_nothing_too_early(began):
    made = on_machines(began(("a", 1), ("b", 1), cooldown_range=(1, 1)), a="m1", b="m2")
    made.nodes["b"].silent = True
    began_at = time.monotonic()
    goes(made, "b")
    again = made.scaler.comes("b")
    until(lambda: started(again) == ["worker:2"])
    assert time.monotonic() - began_at >= 1.0


def test_a_container_of_failing_ranks_moves_elsewhere(began):
    made = on_machines(began(("a", 1), ("b", 1)), a="m1", b="m2")
    b = made.nodes["b"]
    made.job.ends("worker:1", 3)
    until(lambda: started(b) == ["worker:2"])
    made.job.ends("worker:2", 3)
    until(lambda: b.finished)
    goes(made, "b")
    until(lambda: "b" in made.scaler.wanted)
    assert made.scaler.avoid() == {"m2"}
    made.scaler.provider.machines["b"] = "m3"
    again = made.scaler.comes("b")
    until(lambda: started(again) == ["worker:3"])


def test_a_preempted_container_is_requested_again(began):
    made = on_machines(began(("a", 1), ("b", 2)), a="m1", b="m2")
    made.job.leaves("worker:1", leaving=True)
    made.job.leaves("worker:2", leaving=True)
    goes(made, "b")
    again = made.scaler.comes("b")
    until(lambda: started(again) == ["worker:3", "worker:4"])
    assert made.scaler.avoid() == frozenset()


def test_a_missing_container_is_requested_again_later(began):
    made = on_machines(began(("a", 1), ("b", 1), cooldown_range=(1, 1)), a="m1")
    goes(made, "b")
    made.scaler.comes("b", "1 of 1 containers missing")
    again = made.scaler.comes("b")
    until(lambda: started(again) == ["worker:2"])


def test_processes_of_missing_nodes_keep_their_numbers(began):
    job = Job(3)
    job.view.tasks = tuple(SimpleNamespace(task=task, info={}) for task in workers(3))
    nodes = {task: (Node("a"), Slot("a", task.index)) for task in workers(2)}
    scaler = Scaler()
    with Reconciler(job, nodes, [Host("a", 2), Host("b", 1)], scaler):
        b = scaler.comes("b")
        until(lambda: started(b) == ["worker:3"])
    assert [worker.rank for worker in job.admitted] == [3]


# ---- agents that come by themselves ----------------------------------------------------------------------------------


def with_arrivals(made):
    """The same job, whose hosts are those whose agents are there."""
    made.scaler.provider.refill, made.scaler.provider.arrival = Refill.NONE, Arrival.OPEN
    return made


def test_an_agent_that_joins_brings_its_slots(began):
    made = with_arrivals(began(("a", 1), max_proc=3))
    node = Node("b")
    made.it.arrived(Host("b", 4), node)
    until(lambda: started(node) == ["worker:1", "worker:2"])


def test_the_next_agent_replaces_a_lost_one(began, caplog):
    made = with_arrivals(began(("m (agent 1)", 1), ("m (agent 2)", 1)))
    made.scaler.provider.machines = {"m (agent 1)": "m", "m (agent 2)": "m", "m (agent 3)": "m"}
    made.nodes["m (agent 2)"].silent = True
    goes(made, "m (agent 2)")
    made.job.exits.put(None)
    node = Node("m (agent 3)")
    made.it.arrived(Host("m (agent 3)", 1), node)
    made.job.ends("worker:1", None, reason=ExitReason.LOST)
    until(lambda: started(node) == ["worker:2"])
    assert "nothing is started there" not in caplog.text
    assert "asked to leave" not in caplog.text


def test_an_agent_joining_after_training_is_dismissed(began):
    made = with_arrivals(began(("a", 1)))
    made.job.ends("worker:0", 0)
    until(lambda: made.nodes["a"].finished)
    node = Node("b")
    made.it.arrived(Host("b", 1), node)
    until(lambda: node.finished)


def test_an_agent_joining_too_late_is_dismissed(began, caplog):
    """The end of the job waits for its end, too."""
    made = with_arrivals(began(("a", 1), max_proc=2))

    def fails(worker, send):
        raise RuntimeError("this cannot be")

    made.job.admit = fails
    first, second = Node("b"), Node("c")
    made.it.arrived(Host("b", 1), first)
    until(lambda: first.finished)
    assert "lost ranks are no longer replaced" in caplog.text
    made.it.arrived(Host("c", 1), second)
    until(lambda: second.finished)
    assert started(second) == []
