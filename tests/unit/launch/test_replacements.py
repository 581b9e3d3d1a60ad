"""What takes the place of a lost process, and what the end of training does to it."""

import queue
import time
from types import SimpleNamespace

import pytest
from launching import until

from tfcollective.agent.protocol import FinishCommand, StartCommand
from tfcollective.control.state import WorldChange
from tfcollective.failures import ExitRecord
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.replacements import Replacements
from tfcollective.tasks import EVALUATOR, TaskKey, workers


class Node:
    """One host's agent; keeps what it is ordered."""

    def __init__(self):
        self.facts = SimpleNamespace(number=0, name="a-host")
        self.ended = None
        self.orders = []

    def send(self, command):
        self.orders.append(command)

    @property
    def started(self):
        return [str(one.task) for one in self.orders if isinstance(one, StartCommand)]

    @property
    def finished(self):
        return any(isinstance(one, FinishCommand) for one in self.orders)


class Job:
    """An open elastic job of two ranks and an evaluator, of which nothing is reported but what it is given here."""

    def __init__(self):
        self.exits = queue.SimpleQueue()
        self.spec = JobSpec(("x",), 2, min_proc=1)
        self.failed = False
        self.view = SimpleNamespace(members=tuple(workers(2)), leavers=frozenset(), changes=(), durations={})
        self.dismissed = []

    def admit(self, task, send):
        del task, send

    def dismiss(self, task):
        self.dismissed.append(str(task))

    def ends(self, task, code):
        self.exits.put(ExitRecord(task, 0, "node", 1, code, None, 1.0))


@pytest.fixture
def job():
    return Job()


@pytest.fixture
def node(job):
    node = Node()
    with Replacements(job, dict.fromkeys([*workers(2), TaskKey(EVALUATOR, 0)], node)):
        yield node


def test_a_lost_rank_is_replaced_and_the_new_one_ended_with_training_though_its_start_is_not_reported(job, node):
    job.ends("worker:1", 3)
    until(lambda: node.started == ["worker:2"])
    job.ends("worker:0", 0)
    until(lambda: job.dismissed == ["worker:2"])
    assert node.finished


@pytest.mark.parametrize("code", [0, 1])
def test_the_end_of_an_auxiliary_task_is_neither_a_loss_nor_the_end_of_training(job, node, code):
    job.ends("evaluator:0", code)
    job.ends("worker:1", 3)
    until(lambda: node.started == ["worker:2"])
    assert not node.finished


def joined(generation, task, seconds_ago):
    """A world that this task came to so long ago."""
    return WorldChange(generation, 2, (), (TaskKey.parse(task),), 0.0, time.monotonic() - seconds_ago)


def test_ranks_that_have_trained_for_long_are_replaced_at_once_however_many_are_lost(job, node):
    job.view.durations[TaskKey("worker", 1)] = 60.0
    job.ends("worker:1", 3)
    until(lambda: node.started == ["worker:2"])
    for number in range(2, 6):
        job.view.changes += (joined(number, f"worker:{number}", 60.0),)
        job.ends(f"worker:{number}", 3)
        until(lambda number=number: node.started[-1] == f"worker:{number + 1}")


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_a_host_on_which_ranks_end_before_or_soon_after_they_have_joined_is_blocked(job, node, caplog, seconds):
    job.ends("worker:1", 3)
    until(lambda: node.started == ["worker:2"])
    if seconds is not None:
        job.view.changes = (joined(2, "worker:2", seconds),)
    job.ends("worker:2", 3)
    until(lambda: "nothing is started there for 30 s" in caplog.text)
    assert node.started == ["worker:2"]


def test_agents_end_also_if_no_rank_can_be_replaced_any_longer(job, node):
    del job.failed
    job.ends("worker:1", 3)
    until(lambda: node.finished)


def test_the_end_of_the_job_waits_for_no_news_of_ranks(job):
    with Replacements(job, dict.fromkeys(workers(2), Node())):
        pass
    assert job.exits.empty()  # it was woken by what is put there at the end
