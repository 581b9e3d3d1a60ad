"""What takes the place of a lost process, and what the end of training does to it."""

import queue
from types import SimpleNamespace

import pytest
from launching import until

from tfcollective.agent.protocol import FinishCommand, StartCommand
from tfcollective.control.state import TaskView
from tfcollective.failures import ExitRecord
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.replacements import Replacements
from tfcollective.tasks import EVALUATOR, WORKER, TaskKey, workers


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
        self.view = SimpleNamespace(members=tuple(workers(2)), leavers={}, tasks=())
        self.dismissed, self.unstarted = [], []

    def admit(self, task, send):
        del task, send

    def dismiss(self, task):
        self.dismissed.append(str(task))

    def ends(self, task, code, **more):
        self.exits.put(ExitRecord(task, 0, "node", 1, code, None, 1.0, **more))

    def not_started(self, task):
        self.unstarted.append(str(task))


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


def test_agents_end_also_if_no_rank_can_be_replaced_any_longer(job, node):
    del job.failed
    job.ends("worker:1", 3)
    until(lambda: node.finished)


def test_the_end_of_the_job_waits_for_no_news_of_ranks(job):
    with Replacements(job, dict.fromkeys(workers(2), Node())):
        pass
    assert job.exits.empty()  # it was woken by what is put there at the end


@pytest.mark.parametrize("code", [0, 1, None])
def test_nothing_is_started_on_a_node_that_is_to_be_taken_away(job, node, code):
    job.ends("worker:1", code, leaving=True, stopped=code is None)
    job.ends("worker:0", 3)
    until(lambda: node.started == ["worker:2"])  # and worker:1 was seen before
    assert not node.finished


def test_an_order_to_start_that_came_too_late_is_not_waited_for(job):
    ending, other = Node(), Node()
    with Replacements(job, {TaskKey(WORKER, 0): other, TaskKey(WORKER, 1): ending}):
        job.ends("worker:1", 3)
        until(lambda: ending.started == ["worker:2"])
        ending.ended = 1.0
        job.view.tasks = (TaskView(TaskKey(WORKER, 2), 2),)
    assert job.unstarted == ["worker:2"]
