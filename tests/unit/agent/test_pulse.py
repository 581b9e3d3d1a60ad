"""The agent's signs of life for its launcher."""

import socket
from dataclasses import replace

from patience import within

from tfcollective.agent import pulse
from tfcollective.agent.pulse import Pulse
from tfcollective.timing import TIMING


def test_the_launcher_hears_the_agent(monkeypatch):
    monkeypatch.setattr(pulse, "TIMING", replace(TIMING, agent_heartbeat=0.01))
    launcher, agent = socket.socketpair()
    with launcher, agent:
        Pulse(agent.fileno()).start()
        launcher.settimeout(within(20))
        assert [launcher.recv(1) for _ in range(3)] == [b"."] * 3
