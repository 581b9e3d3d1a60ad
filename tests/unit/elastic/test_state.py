"""What a state that a program defines itself has to have."""

from types import SimpleNamespace
from typing import Any

import pytest

from tfcollective import _runtime as runtime
from tfcollective._runtime.change_times import ChangeTimes
from tfcollective.elastic import HostsUpdatedInterrupt, ObjectState, State
from tfcollective.elastic import _state as elastic_state
from tfcollective.elastic._notices import HostUpdateResult, WorkerNotificationManager


class Half(State):
    """Does not say how a rank takes the values of another."""

    def save(self) -> None:
        """Keeps nothing."""


@pytest.mark.parametrize(("method", "arguments"), [("restore", ()), ("take", (0,))])
def test_what_a_state_does_not_define_is_named(method: str, arguments: tuple[int, ...]) -> None:
    with pytest.raises(NotImplementedError, match=rf"Half has no {method}\(\): a state says in save\(\)"):
        getattr(Half(), method)(*arguments)


class World:
    """One rank of an elastic job, of whose communicator the other ranks have heard of no change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 4
        self.pending = 0
        self.change_times = ChangeTimes(lambda times: None)
        monkeypatch.setattr(runtime, "settings", lambda: SimpleNamespace(elastic=True))
        monkeypatch.setattr(runtime, "generation", lambda: self.now)
        monkeypatch.setattr(runtime, "current", lambda: self)
        monkeypatch.setattr(runtime, "get_communicator", lambda: self)

    def allreduce(self, value: Any, op: object, name: str) -> Any:
        """What all ranks know together."""
        return value


def test_a_programs_message_interrupts_the_next_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    World(monkeypatch)
    state = ObjectState(step=0)
    state.commit()
    state.on_hosts_updated(1, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    state.on_hosts_updated(2, HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    state.commit()  # each message counts once
    state.on_hosts_updated(3, HostUpdateResult.added)
    state.on_reset()
    state.commit()


def test_coordinator_changes_reach_only_the_training_state(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    state = ObjectState(step=0)
    manager = WorkerNotificationManager()
    monkeypatch.setattr(elastic_state, "notification_manager", manager)
    with manager.listening(state):
        manager.hear(5)
        assert state._host_messages.qsize() == 1
        with pytest.raises(HostsUpdatedInterrupt):
            state.commit()
        manager.hear(6)
        world.now = 6  # it has come about in another way, as by a loss
        state.commit()
    manager.hear(7)
    assert state._host_messages.empty()
