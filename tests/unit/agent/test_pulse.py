"""Signs of life: the agent's for its launcher, the coordinator's for the agent."""

import socket
import threading

from patience import within

from tfcollective.agent import pulse
from tfcollective.agent.pulse import CoordinatorWatch, Pulse, Silence
from tfcollective.errors import CoordinatorError


def test_silence_lasts_from_the_last_answer():
    silence = Silence(7.0, 100.0)
    assert silence.failed(101.0) is None
    assert silence.failed(106.9) is None
    silence.heard(107.0)
    assert silence.failed(108.0) is None
    assert silence.failed(114.0) == 7.0


def test_one_failure_after_a_long_pause_is_not_enough():
    silence = Silence(7.0, 100.0)
    assert silence.failed(900.0) is None
    assert silence.failed(901.0) == 801.0


def test_the_launcher_hears_the_agent(monkeypatch):
    monkeypatch.setattr(pulse, "_BEAT_S", 0.01)
    launcher, agent = socket.socketpair()
    with launcher, agent:
        Pulse(agent.fileno()).start()
        launcher.settimeout(within(20))
        assert [launcher.recv(1) for _ in range(3)] == [b"."] * 3


class Coordinator:
    """Answers a number of times, then never again."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = 0

    def ping(self):
        self.asked += 1
        if self.asked > self.answers:
            raise CoordinatorError("no answer")


def test_the_loss_of_the_coordinator_is_told_once(monkeypatch):
    monkeypatch.setattr(pulse, "_ASK_S", 0.01)
    monkeypatch.setattr(pulse, "_ASK_AGAIN_S", 0.01)
    coordinator, told, lost = Coordinator(3), [], threading.Event()

    def on_lost():
        told.append(coordinator.asked)
        lost.set()

    CoordinatorWatch(coordinator, 0.05, on_lost).start()
    assert lost.wait(within(20))
    assert len(told) == 1
    assert told[0] >= 5
