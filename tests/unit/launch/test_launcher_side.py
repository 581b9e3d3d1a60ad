"""What a launcher makes of its nodes' signs of life, without nodes."""

import json
import platform
import queue
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from patience import within

from tfcollective._version import __version__
from tfcollective.agent.config import AgentConfig, Order, StopCommand
from tfcollective.agent.policy import StopCause
from tfcollective.codec import decode, encode_line
from tfcollective.control.store import Entry
from tfcollective.errors import ConfigError, CoordinatorError
from tfcollective.launch.nodes import launcher_side
from tfcollective.launch.nodes.launcher_side import Node, version_problem
from tfcollective.launch.nodes.protocol import Facts, NodeSettings
from tfcollective.launch.running.agents import Agents
from tfcollective.timing import TIMING

FACTS = Facts("h2", "", "10.0.0.2", __version__, platform.python_version(), slots=4, number=3)


class Client:
    """Answers one wait after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.keys, self.timeouts = [], []

    def wait(self, key, *, timeout, newer_than):
        self.keys.append((key, newer_than))
        self.timeouts.append(timeout)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def beat(version, ended=False, failure=None):
    return Entry({"ended": ended, "failure": failure}, version)


def node(*answers, facts=FACTS):
    lines, closed = [], []
    made = Node(facts, Client(*answers), lines.append, lambda: closed.append(True))
    made.lines, made.closed = lines, closed
    return made


def test_a_node_that_ends_in_order():
    one = node(beat(1), beat(4), beat(5, ended=True))
    assert one.wait() is None
    assert not one.lost
    assert one._client.keys == [("node/3/beat", 0), ("node/3/beat", 1), ("node/3/beat", 4)]


def test_a_node_whose_agent_failed():
    assert node(beat(1, ended=True, failure="the agent was killed")).wait().message == "h2: the agent was killed"


def test_of_several_failures_of_nodes_that_of_the_first_one_counts():
    """The first of which no sign of life came, not the first that was noticed."""
    early, late = node(None), node(beat(1, ended=True, failure="late"))
    early.heard -= 5.0
    assert "has not answered" in Agents([late, early]).wait(lambda: False).message


def test_a_node_that_is_silent_is_lost_and_cut_off():
    one = node(beat(1), None)
    failure = one.wait()
    assert "the host h2 (10.0.0.2) has not answered for 15 s" in failure.message
    assert failure.at == one.heard
    assert one.lost
    assert one.closed


def given_work(one, finished):
    """As after its orders, with tasks that have ended well or have not."""
    one.begin(
        SimpleNamespace(
            has_finished=finished if callable(finished) else lambda tasks: finished,
            agent_config=lambda workers, scratch_dir: AgentConfig("job", "", "", (), ""),
            watch=lambda workers, send: None,
            grace=10.0,
            host_timeout=60.0,
        ),
        (),
        "python",
    )
    return one


@pytest.mark.parametrize("finished", [True, False])
def test_a_node_that_falls_silent_after_its_work_is_not_lost(finished):
    one = given_work(node(beat(1), None), finished)
    assert (one.wait() is None) == finished
    assert one.lost != finished
    assert one.closed


def test_a_node_is_lost_also_where_nobody_tells_whether_its_work_was_done():
    def unknown(tasks):
        raise CoordinatorError("the coordinator does not answer")

    one = given_work(node(beat(1), None), unknown)
    assert "has not answered" in one.wait().message
    assert one.lost


@pytest.mark.parametrize("finished", [True, False])
def test_a_node_that_is_ended_after_its_work_was_not_taken_away(finished):
    one = given_work(node(Entry({"ended": True, "failure": None, "signal": "SIGTERM"}, 1)), finished)
    assert one.wait() is None
    assert one.ended_by == (None if finished else "SIGTERM")


def test_a_node_is_given_as_long_as_the_job_says():
    one = given_work(node(beat(1), None), finished=False)
    assert "has not answered for 60 s" in one.wait().message
    assert one._client.timeouts == [60.0, 60.0]
    assert decode(one.lines[0], AgentConfig, "the order").lost_after == 60.0


def test_a_node_that_does_not_end_when_asked(monkeypatch):
    monkeypatch.setattr(launcher_side, "TIMING", replace(TIMING, order=-100.0))
    one = node(beat(1))
    one.stop(StopCommand(signal.SIGTERM))
    assert decode(one.lines[0], Order, "the order").command == StopCommand(signal.SIGTERM)
    begin = time.monotonic()
    failure = one.wait()
    assert "has not ended its ranks" in failure.message
    assert failure.at >= begin  # it lived to the end
    assert one.closed


def test_a_coordinator_that_is_gone():
    assert node(CoordinatorError("no answer")).wait().message == "h2: no answer"


class Postbox:
    """Takes what is put there from the third time on, until it is closed."""

    def __init__(self, refusals):
        self.refusals, self.closed = refusals, False
        self.tried, self.left = threading.Event(), queue.SimpleQueue()

    def put(self, key, value):
        self.tried.set()
        if self.refusals:
            self.refusals -= 1
            raise CoordinatorError("one slow answer")
        self.left.put((key, list(value)))


def test_an_order_that_could_not_be_left_is_left_later(monkeypatch):
    monkeypatch.setattr(launcher_side, "TIMING", replace(TIMING, retry=0.01))
    box = Postbox(refusals=2)
    mailbox = launcher_side.Mailbox(box, 3)
    mailbox.write(b"one\n")
    assert box.left.get(timeout=within(20)) == ("node/3/orders", ["one"])
    mailbox.write(b"two\n")
    assert box.left.get(timeout=within(20)) == ("node/3/orders", ["one", "two"])
    box.closed = True


class Runs:
    """An agent that runs until it is asked to stop, or for good; it takes longer to end than the others."""

    def __init__(self, delay=0.0):
        self.asked, self._stopped, self._delay = [], threading.Event(), delay

    def stop(self, command):
        self.asked.append(command)
        self._stopped.set()

    def wait(self):
        assert self._stopped.wait(within(20))
        time.sleep(self._delay)  # so that each ends after the one before


def test_each_node_is_asked_once_however_many_fail():
    first, others = node(beat(1, ended=True)), [Runs(0.02 * number) for number in range(8)]
    agents = Agents([first, *others])
    assert agents.wait(lambda: True) is None
    assert [one.asked for one in others] == [[StopCommand(signal.SIGTERM, StopCause.ELSEWHERE)]] * 8
    assert first.lines == []


def test_a_request_is_passed_on_once_and_ctrl_c_again():
    one = Runs()
    agents = Agents([one])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        agents.stop(number)
    assert one.asked == [StopCommand(signal.SIGTERM), StopCommand(signal.SIGINT)]


def test_after_a_request_the_ends_of_nodes_ask_for_nothing():
    nodes = [Runs(0.02 * number) for number in range(4)]
    agents = Agents(nodes)
    agents.stop(signal.SIGTERM)
    assert agents.wait(lambda: True) is None
    assert [one.asked for one in nodes] == [[StopCommand(signal.SIGTERM)]] * 4


def test_when_one_node_is_lost_the_others_are_stopped():
    lost, other = node(None), Runs()
    assert "has not answered" in Agents([lost, other]).wait(lambda: False).message
    assert other.asked == [StopCommand(signal.SIGTERM, StopCause.ELSEWHERE)]
    assert not lost.lines


def test_a_lost_node_of_auxiliary_tasks_stops_nobody_and_is_named():
    silent, lost, other = node(beat(1, ended=True)), node(None), node(beat(1, ended=True))
    agents = Agents([other], [silent, lost])
    assert agents.wait(lambda: False) is None
    assert other.lines == silent.lines == []
    assert list(agents.side_failures) == [1]
    assert "has not answered for 15 s" in agents.side_failures[1]


def test_a_refusal_is_an_order():
    one = node()
    one.refuse("because")
    assert json.loads(one.lines[0]) == {"refused": "because"}


def test_another_version_is_named_with_the_remedy():
    assert version_problem(FACTS) is None
    other = replace(FACTS, version="0.0.1")
    assert f"h2 has tfcollective 0.0.1, the launcher {__version__}" in version_problem(other)
    assert f"pip install tfcollective=={__version__}" in version_problem(other)


def test_another_python_is_named():
    assert "h2 has Python 3.9.2, the launcher 3." in version_problem(replace(FACTS, python="3.9.2"))


def test_settings_travel_as_one_line():
    settings = NodeSettings("10.0.0.1:5", "ab" * 32, "h\n2", ("eth0", "10.0.0.0/8"), 4)
    assert encode_line(settings).count(b"\n") == 1
    assert decode(encode_line(settings), NodeSettings, "the settings") == settings
    assert settings.key not in repr(settings)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"{}", b'{"network_interfaces": []}'])
def test_other_lines_are_no_settings(line):
    with pytest.raises(ConfigError, match="settings cannot be read"):
        decode(line, NodeSettings, "the settings")
