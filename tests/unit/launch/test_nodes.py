"""How a launcher judges the heartbeats and reports of nodes; without real nodes."""

import platform
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from time_limits import within

from tfcollective._base.codec import decode, encode_line
from tfcollective._base.errors import ConfigError, CoordinatorError
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.version import __version__
from tfcollective._control.client.channel import Channel, Retry
from tfcollective._control.messages import Entry, Found
from tfcollective._launch.agent.policy import StopCause
from tfcollective._launch.agent.protocol import AgentConfig, Order, SignalCommand, StopCommand, WorkerPlan
from tfcollective._launch.nodes.gather import version_problem
from tfcollective._launch.nodes.live import Agents, Node
from tfcollective._launch.nodes.provider import NodeFacts, NodeKind, NodeSettings, Went
from tfcollective._testing.provider import FakeProvider

FACTS = NodeFacts("h2", "", "10.0.0.2", __version__, platform.python_version(), slots=4, number=3)


class Client:
    """Answers the one wait of a node: with its end, None when it is silent, or an error."""

    closed = False

    def __init__(self, answer):
        self.answer, self.waits, self.stored, self.put_first = answer, [], None, threading.Event()

    def call(self, request):
        self.waits.append((request.key, request.presence.name, request.presence.limit))
        if self.answer is UNREPORTED:
            assert self.put_first.wait(within(20))
            return Found(self.stored)
        answer = self.answer.pop(0) if isinstance(self.answer, list) else self.answer
        if isinstance(answer, Exception):
            raise answer
        return Found(answer, silent=answer is SILENT)

    def get(self, key):
        return self.stored

    def put(self, key, value):
        self.stored = Entry(value, 1)
        self.put_first.set()


UNREPORTED = object()  # the node has reported nothing, and is alive
SILENT = None


def end(failure=None, signal=None):
    return Entry({"failure": failure, "signal": signal}, 1)


def node(answer=UNREPORTED, facts=FACTS, order=TIMING.order, **provider):
    made = Node(facts, Client(answer), FakeProvider(pipes=True, **provider), order)
    made.provider = made._provider
    made.lines = made.provider.lines
    return made


def test_a_node_that_ends_in_order():
    one = node(end())
    assert one.wait() is None
    assert not one.lost
    assert one._client.waits == [("node/3/end", "node/3", 15.0)]


def test_a_node_whose_agent_failed():
    assert node(end("the agent was killed")).wait().message == "h2: the agent was killed"


def test_the_node_that_fell_silent_first_counts():
    """The first of which no heartbeat came, not the first that was noticed."""
    early, late = node(SILENT), node(end("late"))
    assert "has not answered" in Agents([late, early]).wait(lambda: False).message


def test_a_silent_node_is_lost_and_released():
    one = node(SILENT)
    failure = one.wait()
    assert "the host h2 (10.0.0.2) has not answered for 15 s" in failure.message
    assert failure.at <= time.monotonic() - 15.0
    assert one.lost
    assert one.provider.released == ["h2"]


@pytest.mark.parametrize("kind", [NodeKind.LENT, NodeKind.KEPT])
def test_a_provider_may_explain_a_silent_node(kind):
    one = node(SILENT, how="was ended (it took too much memory)", kind=kind)
    assert one.wait().message == "the agent on h2 was ended (it took too much memory)"
    assert one.lost == (kind is NodeKind.LENT)


def test_a_nodes_own_report_precedes_the_platforms():
    one = node()
    one.look()
    assert one._client.stored is None  # nothing has happened
    one.went(Went("h2", "was killed by SIGKILL"))
    one.look()
    assert one.wait().message == "the agent on h2 was killed by SIGKILL"
    other = node(end("out of memory"))
    other._client.stored = end("out of memory")
    other.went(Went("h2", "exited with code 70"))
    other.look()
    assert other.wait().message == "h2: out of memory"


def test_events_during_an_outage_are_reported_later():
    one = node()
    one.went(Went("h2", "was killed by SIGKILL"))
    get, failures = one._client.get, [CoordinatorError("one slow answer")]

    def sometimes(key):
        if failures:
            raise failures.pop()
        return get(key)

    one._client.get = sometimes
    one.look()
    assert not one._client.put_first.is_set()
    one.look()
    assert one._client.put_first.is_set()


def job_of(has_finished):
    return SimpleNamespace(
        has_finished=has_finished,
        agent_config=lambda workers: AgentConfig("job", ()),
        watch=lambda workers, send: None,
        scratch_dir="/s",
        spec=SimpleNamespace(grace=10.0, host_timeout=60.0),
    )


def given_work(one, finished):
    """As after its orders, with tasks that have ended well or have not."""
    one.begin(
        job_of(finished if callable(finished) else lambda tasks: finished),
        (WorkerPlan(TaskKey("worker", 0), 0, ("train",), {}),),
        "python",
    )
    return one


@pytest.mark.parametrize("finished", [True, False])
def test_silence_after_the_work_is_no_loss(finished):
    one = given_work(node(SILENT), finished)
    assert (one.wait() is None) == finished
    assert one.lost != finished
    assert one.provider.released == ["h2"]


def test_a_node_without_a_process_is_unfinished():
    one = node(SILENT)
    one.begin(job_of(lambda tasks: True), (), "python")
    assert "has not answered" in one.wait().message
    assert one.silent
    one = node(SILENT)
    one.begin(job_of(lambda tasks: len(tasks) == 1), (), "python")
    one.start(WorkerPlan(TaskKey("worker", 0), 0, ("train",), {}), 1)
    assert one.wait() is None
    assert not one.silent


def test_a_node_of_unknown_progress_is_lost():
    def unknown(tasks):
        raise CoordinatorError("the coordinator does not answer")

    one = given_work(node(SILENT), unknown)
    assert "has not answered" in one.wait().message
    assert one.lost


SIGNALLED = end(signal="SIGTERM")


@pytest.mark.parametrize("finished", [True, False])
def test_ending_after_the_work_is_no_loss(finished):
    """A platform asks with SIGTERM first: the agent may end its ranks in order without having been asked to."""
    one = given_work(node(SIGNALLED, kind=NodeKind.LENT), finished)
    failure = one.wait()
    assert (failure is None) == finished
    assert one.lost != finished
    assert finished or failure.message == "the agent on h2 was ended by SIGTERM"


def test_the_platform_may_know_more_than_the_signal():
    one = node(SIGNALLED, kind=NodeKind.LENT, how="was ended (it took too much memory)")
    assert one.wait().message == "the agent on h2 was ended (it took too much memory)"


def test_a_signal_to_lasting_nodes_concerns_ranks():
    one = node(SIGNALLED, how="asked")
    assert one.wait() is None
    assert not one.lost


def test_a_node_is_lost_after_host_timeout():
    one = given_work(node(SILENT), finished=False)
    assert "has not answered for 60 s" in one.wait().message


def test_an_abandoned_node_is_ordered_to_end():
    """Its agent may have been stopped: nothing else would tell it that the job goes on without it."""
    one = given_work(node(SILENT), finished=False)
    assert one.wait() is not None
    assert decode(one.lines[-1], Order, "the order").command == StopCommand(signal.SIGTERM, StopCause.ABANDONED)
    well = given_work(node(SILENT), finished=True)
    assert well.wait() is None
    assert len(well.lines) == 1


def test_a_local_agent_gets_the_launchers_findings():
    one = given_work(node(kind=NodeKind.HERE), finished=False)
    config = decode(one.lines[0], AgentConfig, "it")
    assert (config.scratch_dir, config.here, config.lost_after) == ("/s", True, TIMING.coordinator_lost)


def test_a_node_that_does_not_end_when_asked():
    one = node(order=-100.0)
    one.stop(StopCommand(signal.SIGTERM))
    assert decode(one.lines[0], Order, "the order").command == StopCommand(signal.SIGTERM)
    one.look()
    begin = time.monotonic()
    failure = one.wait()
    assert "has not ended its ranks" in failure.message
    assert failure.at >= begin  # it lived to the end
    assert one.provider.released == ["h2"]


def test_a_second_ctrl_c_leaves_it_less_time():
    one = node()
    for cause, number in ((StopCause.ELSEWHERE, signal.SIGTERM), (StopCause.REQUEST, signal.SIGTERM)):
        one.stop(StopCommand(number, cause))
        assert one._stop_limit == 25.0
    one.stop(StopCommand(signal.SIGINT))
    assert one._stop_limit == 10.0


def test_a_coordinator_that_is_gone(monkeypatch):
    soon = Retry(seconds=0.1, pause=0.01, first_pause=0.01)
    monkeypatch.setattr("tfcollective._launch.nodes.live.Channel", partial(Channel, retry=soon))
    assert node(CoordinatorError("no answer")).wait().message == "h2: no answer"
    assert node(CoordinatorError("no answer"), replace(FACTS, name="")).wait().message == "no answer"


def test_a_launcher_that_was_stopped_asks_again():
    """Its request timed out while it was stopped; the coordinator is its own, and was stopped as long."""
    assert node([CoordinatorError("timed out"), end()]).wait() is None


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
    first, others = node(end()), [Runs(0.02 * number) for number in range(8)]
    agents = Agents([first, *others])
    assert agents.wait(lambda: True) is None
    assert [one.asked for one in others] == [[StopCommand(signal.SIGTERM, StopCause.ELSEWHERE)]] * 8
    assert first.lines == []


def test_requests_pass_once_and_ctrl_c_again():
    one = Runs()
    agents = Agents([one])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        agents.stop(number)
    assert one.asked == [StopCommand(signal.SIGTERM), StopCommand(signal.SIGINT)]


def test_every_signal_for_the_program_is_passed():
    one = node(end())
    agents = Agents([one])
    for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM):
        agents.heed(number)
    assert [decode(line, Order, "it").command for line in one.lines] == [
        SignalCommand(signal.SIGUSR1),
        SignalCommand(signal.SIGUSR1),
        StopCommand(signal.SIGTERM),
    ]


def test_after_a_request_ending_nodes_ask_nothing():
    nodes = [Runs(0.02 * number) for number in range(4)]
    agents = Agents(nodes)
    agents.stop(signal.SIGTERM)
    assert agents.wait(lambda: True) is None
    assert [one.asked for one in nodes] == [[StopCommand(signal.SIGTERM)]] * 4


def test_one_lost_node_stops_the_others():
    lost, other = node(SILENT), Runs()
    assert "has not answered" in Agents([lost, other]).wait(lambda: False).message
    assert other.asked == [StopCommand(signal.SIGTERM, StopCause.ELSEWHERE)]
    assert len(lost.lines) == 1  # should it come back


def test_a_lost_auxiliary_node_stops_no_rank():
    silent, lost, other = node(end()), node(SILENT), node(end())
    agents = Agents([other], [silent, lost])
    assert agents.wait(lambda: False) is None
    assert other.lines == silent.lines == []
    assert list(agents.side_failures) == [lost]
    assert "has not answered for 15 s" in agents.side_failures[lost]


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
