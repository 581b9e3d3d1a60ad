"""Agents that commands of this machine start, or lead to."""

import os
import signal
import sys
import time

import pytest
from launching import until
from time_limits import within

from tfcollective._base.errors import LaunchError
from tfcollective._launch.nodes.provider import NodeFacts, NodeKind, NodeSettings
from tfcollective._launch.platforms.commands import AgentCommand, CommandProvider

SETTINGS = NodeSettings("127.0.0.1:9", "ab" * 32, "h2")
FACTS = NodeFacts("h2", pid=77)
DEAF = ("sleep", "100")  # reads as little as an agent that was stopped


def provider(command, here=("h2",), **options):
    return CommandProvider({"h2": command}, here, **options)


def test_orders_to_a_blocked_process_delay_nothing():
    agent = AgentCommand(DEAF, whole_lines=True)
    agent.write(b"x" * (1 << 20))
    agent.close()
    agent.kill()
    agent.wait(within(20))
    assert agent.exit_code == -signal.SIGKILL


def test_an_agent_gets_all_orders_before_the_end():
    program = "import sys; sys.exit(len(sys.stdin.read()) != (1 << 20) + 4)"
    agent = AgentCommand((sys.executable, "-c", program), whole_lines=True)
    agent.write(b"x" * (1 << 20))
    agent.write(b"end\n")
    agent.close()
    until(lambda: agent.exit_code is not None, 60)
    assert agent.exit_code == 0


def test_a_command_that_cannot_run():
    with pytest.raises(LaunchError, match="cannot run /no/such/agent"), provider(("/no/such/agent",)) as one:
        one.request([SETTINGS])


def test_an_agent_ends_with_its_provider(capfd):
    with provider(("cat",)) as one:
        one.request([SETTINGS])
        begin = time.monotonic()
    assert time.monotonic() - begin < within(5)  # the end of its stdin is enough
    assert '"name": "h2"' in capfd.readouterr().out


@pytest.mark.parametrize(
    ("here", "kind", "text"),
    [
        (("h2",), NodeKind.HERE, "the agent (pid {pid}) was killed by SIGKILL; its processes have been ended"),
        (("h2",), NodeKind.KEPT, "h2: the agent (pid 77) was killed by SIGKILL; its processes have been ended"),
        ((), NodeKind.KEPT, "h2: the agent (pid 77) has ended without a report (sleep: exit code -9)"),
    ],
)
def test_an_agents_end_is_one_event(here, kind, text):
    with provider(DEAF, here, kind=kind) as one:
        one.request([SETTINGS])
        assert one.events() == []
        assert one.explain(FACTS, 15.0) == (
            "sent no heartbeat for 15 s (stopped?) and was killed; its processes have been ended" if here else None
        )
        pid = one._processes["h2"].pid
        os.kill(pid, signal.SIGKILL)
        found = []
        until(lambda: found.extend(one.events()) or found)
        (event,) = found
        assert f"{one.subject(FACTS)} {event.how}" == text.format(pid=pid)
        assert one.explain(FACTS, 15.0) == event.how
        assert one.events() == []


def test_a_node_that_is_released_is_killed():
    with provider(DEAF) as one:
        one.request([SETTINGS])
        one.release("h2")
        until(lambda: one.events())


def test_an_agent_that_does_not_end_is_killed():
    begin = time.monotonic()
    with provider(DEAF, abandoned=0.2) as one:
        one.request([SETTINGS])
    assert one.events()[0].how == "was killed by SIGKILL; its processes have been ended"
    assert time.monotonic() - begin < within(10)


def test_agents_share_the_time_before_being_killed(monkeypatch):
    waits = []
    wait = AgentCommand.wait
    monkeypatch.setattr(AgentCommand, "wait", lambda self, seconds: waits.append(seconds) or wait(self, seconds))
    names = ("h1", "h2", "h3")
    with CommandProvider(dict.fromkeys(names, DEAF), names, abandoned=0.2) as one:
        one.request([NodeSettings("127.0.0.1:9", "ab" * 32, name) for name in names])
    assert [seconds == 0.0 for seconds in waits] == [False, True, True]
    assert [event.how for event in one.events()] == ["was killed by SIGKILL; its processes have been ended"] * 3
