"""What of its environment a member of a world may take for its own agent's."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launching import until

from tfcollective import elastic, runtime
from tfcollective.errors import CollectiveAbortedError, CollectiveTimeoutError, PeerLostError
from tfcollective.identity import discover
from tfcollective.runtime.engine import JoinResult
from tfcollective.runtime.native import NativeEngine
from tfcollective.runtime.session import Session
from tfcollective.settings import Settings
from tfcollective.topology import SINGLE


class Coordinator:
    """The coordinator's client, as far as a session needs it; counts the signs of life that come to it directly."""

    def __init__(self) -> None:
        self.beats = 0

    def heartbeat(self, *_given: Any) -> None:
        self.beats += 1

    def leave(self, _task: Any, *, for_good: bool = False, why: str = "") -> None:
        pass

    def close(self) -> None:
        pass


class NextWorlds(NativeEngine):
    """Whose next worlds do what they are given; keeps which rank was said to be lost before each."""

    def __init__(self, settings: Settings, identity: Any, worlds: list[Callable[[], None]]) -> None:
        super().__init__(settings, identity)
        self.alone = settings, identity
        self.worlds = worlds
        self.lost: list[int | None] = []

    def rejoin(self, lost: int | None) -> JoinResult:
        self.lost.append(lost)
        self.worlds.pop(0)()
        return JoinResult(*self.alone, SINGLE, generation=len(self.lost) + 1)


def raises(error: Exception) -> Callable[[], None]:
    def connect() -> None:
        raise error

    return connect


def elastic_session(*worlds: Callable[[], None]) -> tuple[NextWorlds, Session]:
    settings, identity = Settings(elastic=True), discover(Settings(), {})
    engine = NextWorlds(settings, identity, [*worlds, lambda: None])
    return engine, Session(engine, JoinResult(settings, identity, SINGLE, generation=1))


def test_a_rank_that_does_not_connect_to_the_next_world_costs_one_more_and_is_not_called_lost() -> None:
    """Nor is the one that has waited for it, and says so to the others."""
    engine, session = elastic_session(
        raises(CollectiveTimeoutError("rank 2 did not connect to rank 0", peer=2)),
        raises(CollectiveAbortedError("rank 0 stopped: rank 2 did not connect to rank 0", peer=0)),
        raises(PeerLostError("rank 1 is gone", peer=1)),
    )
    session.reopen(2)
    assert engine.lost == [2, None, None, 1]
    assert session.generation == 5
    session.close()


def test_sigterm_ends_a_rank_that_waits_for_the_next_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may not come to it for as long as an operation may take."""

    class Broken(elastic.State):
        def sync(self) -> None:
            raise elastic.HorovodInternalError

        def restore(self) -> None:
            pass

    def wait() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)
        raise AssertionError("it waits on")

    _, session = elastic_session(wait)
    monkeypatch.setattr(runtime, "_session", session)
    with pytest.raises(SystemExit) as ended:
        elastic.run(lambda state: None)(Broken())
    assert ended.value.code == 0
    assert session.leaving == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    runtime.shutdown()


@pytest.mark.parametrize("source", ["launcher", "tf_config"])
def test_a_rank_of_a_job_inside_another_writes_nothing_for_the_outer_agent(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TF_CONFIG has said who it is, and it has inherited what the agent has given the rank that has started it."""
    monkeypatch.setattr(sys, "excepthook", lambda *_given: None)
    settings = Settings(beat_dir=str(tmp_path), failure_file=str(tmp_path / "failure"))
    coordinator: Any = Coordinator()
    identity = replace(discover(Settings(), {}), source=source)
    session = Session(NativeEngine(settings, identity), JoinResult(settings, identity, SINGLE, client=coordinator))
    session.start()
    until(lambda: coordinator.beats or list(tmp_path.iterdir()))
    sys.excepthook(ValueError, ValueError("rotten"), None)
    session.close()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == ({"beat-worker-0.json", "failure"} if source == "launcher" else set())
