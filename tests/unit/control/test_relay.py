"""Ranks' heartbeats go by way of their agent, one message a node; directly where the agent does not answer."""

import os
import shutil

import pytest

from tfcollective._base.errors import CoordinatorError
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.timing import TIMING
from tfcollective._control.client.liveness import Heartbeat
from tfcollective._control.client.relay import BeatRelay, TaskBeat
from tfcollective._testing.clock import ManualClock

TASKS = workers(2)


class Coordinator:
    """Counts what comes to it, directly and by way of the agent."""

    def __init__(self):
        self.direct = []
        self.handed_on = []
        self.down = False

    def call(self, beat):
        self._check()
        self.direct.append(beat)

    def alive(self, beats):
        self._check()
        self.handed_on.append([(str(beat.task), beat.info["completed"]) for beat in beats])

    def _check(self):
        if self.down:
            raise CoordinatorError("no answer")


class Node:
    """An agent and its ranks, on a clock of their own."""

    def __init__(self, directory):
        self.clock = ManualClock(100.0)
        self.coordinator = Coordinator()
        self.agent = BeatRelay(self.coordinator.alive)
        self.agent.serve(directory, [str(task) for task in TASKS])
        self.directory = directory
        self.ranks = [TaskBeat(self.coordinator, task, str(directory), self.clock) for task in TASKS]
        self._answers = 0

    def give(self, rank, completed, **options):
        """A rank's heartbeat: whether it has found an answer."""
        self.clock.advance(TIMING.heartbeat)
        try:
            self.ranks[rank].give("running", {"completed": completed}, **options)
        except CoordinatorError:
            return False
        return True

    def beat(self):
        """The agent's; what it touches gets a time of its own, however coarse the file system's clock."""
        before = len(self.coordinator.handed_on)
        self.agent()
        self._answers += 1
        for task, _ in self.coordinator.handed_on[before]:
            answer = self.directory / f"answered-{task.replace(':', '-')}"
            os.utime(answer, ns=(self._answers, self._answers))


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "beats")


def test_a_node_sends_news_in_one_message(node):
    node.beat()
    for rank in range(2):
        node.give(rank, 1)
    node.give(1, 2)
    node.beat()
    node.beat()
    node.give(0, 3)
    node.beat()
    assert node.coordinator.handed_on == [[], [("worker:0", 1), ("worker:1", 2)], [], [("worker:0", 3)]]
    assert node.coordinator.direct == []


def test_agent_beats_do_not_cover_stopped_ranks(node):
    for step in range(20):
        node.give(0, step)
        node.beat()
    assert all(beats == [("worker:0", step)] for step, beats in enumerate(node.coordinator.handed_on))


def test_what_was_not_answered_is_handed_on_again(node):
    node.give(0, 1)
    node.coordinator.down = True
    with pytest.raises(CoordinatorError):
        node.beat()
    node.coordinator.down = False
    node.beat()
    assert node.coordinator.handed_on == [[("worker:0", 1)]]


def test_ranks_find_the_coordinators_answers_to_their_agent(node):
    node.give(0, 0)
    answered = []
    for step in range(3):
        node.beat()
        answered += [node.give(0, step), node.give(0, step)]
    assert answered == [True, False] * 3


def test_ranks_heartbeat_directly_while_their_agent_cannot(node):
    node.give(0, 0)
    node.beat()
    assert node.give(0, 0)
    waited = 0
    while not node.give(0, 1):
        waited += 1
        assert not node.coordinator.direct
    assert waited == TIMING.relay // TIMING.heartbeat - 1
    for step in range(2, 5):
        assert node.give(0, step)
    assert [beat.info["completed"] for beat in node.coordinator.direct] == [1, 2, 3, 4]
    node.beat()
    node.give(0, 5)
    node.give(0, 6)
    assert len(node.coordinator.direct) == 4


def test_a_stopped_rank_blames_no_agent(node):
    node.beat()
    node.give(0, 0)
    node.clock.advance(1000)
    assert not node.give(0, 1)
    assert not node.coordinator.direct


def test_a_rank_keeps_to_its_coordinator_limit(node):
    lost = []
    node.beat()
    heart = Heartbeat(lambda: node.ranks[0].give("running", {"completed": 0}), lost.append, clock=node.clock)
    heart.beat()
    node.coordinator.down = True
    beats = 0
    while not lost:
        node.clock.advance(TIMING.heartbeat)
        heart.beat()
        beats += 1
    assert beats * TIMING.heartbeat == TIMING.coordinator_lost
    assert lost == ["the coordinator has not answered for 30 s: no answer"]


def test_urgent_large_and_stranded_signs_go_directly(node):
    node.beat()
    node.give(0, 1, at_once=True)
    node.give(0, "x" * (1 << 15))
    shutil.rmtree(node.directory)
    node.give(0, 2)
    assert [str(beat.info["completed"])[:1] for beat in node.coordinator.direct] == ["1", "x", "2"]


def test_a_rank_with_unreadable_signs_sends_directly(node):
    node.agent.serve(node.directory, ["worker:1"])  # as where a container runs the other as another user
    for step in range(6):
        node.give(0, step)
        node.give(1, step)
        node.beat()
    assert [str(beat.task) for beat in node.coordinator.direct] == ["worker:0", "worker:0"]
    assert node.coordinator.handed_on == [[("worker:1", step)] for step in range(6)]


def test_ranks_send_directly_without_the_agents_directory(node, tmp_path):
    beats = tmp_path / "full" / "beats"
    node.agent.serve(beats, ["worker:0"])
    TaskBeat(node.coordinator, TASKS[0], str(beats), node.clock).give("running", {"completed": 1})
    node.agent()
    assert [beat.info["completed"] for beat in node.coordinator.direct] == [1]
    assert node.coordinator.handed_on == [[]]


def test_signs_of_many_ranks_fit_one_message(node):
    many = workers(300)
    node.agent.serve(node.directory, [str(task) for task in many])
    for task in many:
        info = {"completed": "x" * (15_000 if task.index else 100)}
        with pytest.raises(CoordinatorError):  # none was answered yet
            TaskBeat(node.coordinator, task, str(node.directory), node.clock).give("running", info)
    node.agent()
    assert [task for task, _ in node.coordinator.handed_on[0]] == ["worker:0"]


def test_without_an_agent_all_go_directly():
    coordinator = Coordinator()
    TaskBeat(coordinator, TASKS[0], None).give("running", {"completed": 1})
    assert [beat.task for beat in coordinator.direct] == [TASKS[0]]


def test_files_of_other_tasks_are_left_out(node):
    node.give(0, 1)
    (node.directory / "beat-worker-1.json").write_bytes((node.directory / "beat-worker-0.json").read_bytes())
    node.beat()
    (node.directory / "beat-worker-1.json").write_text("{")
    node.beat()
    assert node.coordinator.handed_on == [[("worker:0", 1)], []]


def test_what_an_earlier_attempt_has_left_is_forgotten(node):
    node.give(0, 1)
    node.agent.serve(node.directory, ["worker:0", "evaluator:0"])
    node.beat()
    assert node.coordinator.handed_on == [[]]
    with pytest.raises(CoordinatorError):  # none was answered yet
        TaskBeat(node.coordinator, TaskKey("evaluator", 0), str(node.directory)).give("running", {"completed": 7})
    node.beat()
    assert node.coordinator.handed_on[-1] == [("evaluator:0", 7)]
