"""What of its environment a member of a world may take for its own agent's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launching import until
from time_limits import within

from tfcollective import _runtime as runtime
from tfcollective import elastic
from tfcollective._base.errors import (
    CollectiveAbortedError,
    CollectiveCancelledError,
    CollectiveTimeoutError,
    PeerLostError,
    RendezvousError,
    StateError,
)
from tfcollective._base.settings import Settings
from tfcollective._base.topology import SINGLE, Member, World
from tfcollective._control.client.client import CoordinatorUnreachableError
from tfcollective._control.identity import discover
from tfcollective._control.messages import Beat, Done, Join, Joined, pack_world
from tfcollective._runtime.engine import JoinResult, register
from tfcollective._runtime.native import NativeEngine, identify
from tfcollective._runtime.session import Session


def test_a_rerun_parent_script_learns_about_init(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    several = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "j",
    }
    monkeypatch.setattr("tfcollective._runtime.native.environ_snapshot", lambda: several)
    with pytest.raises(StateError, match=r"started by worker:1 itself.*under if __name__ == '__main__'"):
        identify(Settings())
    assert identify(Settings(identity="single")).world_size == 1


class Coordinator:
    """The coordinator's client, as far as a session needs it; counts the heartbeats that come to it directly."""

    closed = False

    def __init__(self) -> None:
        self.beats = 0
        self.done_said: list[bool] = []

    def call(self, request: Any) -> None:
        self.beats += isinstance(request, Beat)
        if isinstance(request, Done):
            self.done_said.append(request.again)

    def put_blob(self, _name: str, _data: bytes) -> None:
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


def test_a_rank_not_connecting_is_not_lost() -> None:
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


def test_sigterm_ends_waiting_for_the_next_world(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_waiting_for_the_next_world_blocks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting, ended = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        assert ended.wait(within(60))

    _, session = elastic_session(wait)
    monkeypatch.setattr(runtime, "_session", session)
    with ThreadPoolExecutor() as pool:
        reopening = pool.submit(runtime.reopen)
        assert waiting.wait(within(60))
        assert session._info() is None
        pool.submit(runtime.init).result(within(30))
        assert pool.submit(runtime.size).result(within(30)) == 1
        pool.submit(runtime.shutdown).result(within(30))
        ended.set()
        with pytest.raises(StateError, match="left the job"):
            reopening.result(within(30))
    assert not session._open_communicators()


def test_a_signal_handler_may_leave_the_world() -> None:
    _, session = elastic_session()
    session.communicator()
    with ThreadPoolExecutor() as pool:

        def interrupted() -> None:
            with session._lock:  # what it interrupts holds it
                session.close()

        pool.submit(interrupted).result(within(30))


def test_aborting_while_apart_ends_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    _, session = elastic_session()
    world = session.communicator()
    with session.solo():
        alone = session.communicator()
        session.abort("the program failed")
    with pytest.raises(CollectiveCancelledError, match="the program failed"):
        world.barrier()
    assert alone is not world
    assert session.communicator() is world
    session.close()


def test_leaving_while_apart_leaves_the_world() -> None:
    _, session = elastic_session()
    world = session.communicator()
    with session.solo():
        session.close()
    assert world.closed
    with pytest.raises(StateError, match="has left the world"):
        session.communicator()


def test_each_outermost_training_tells_the_coordinator() -> None:
    settings, identity = Settings(elastic=True), discover(Settings(), {})
    coordinator: Any = Coordinator()
    session = Session(NextWorlds(settings, identity, []), JoinResult(settings, identity, SINGLE, client=coordinator))
    with session.training(), session.training():
        pass
    with pytest.raises(ValueError, match="rotten"), session.training():
        raise ValueError("rotten")
    assert coordinator.done_said == [False, True]
    with session.training():
        pass
    assert coordinator.done_said == [False, True, False]


def test_a_broken_connection_asks_for_worlds_again() -> None:
    settings, identity = Settings(elastic=True), discover(Settings(), {})

    class Breaks(Coordinator):
        def __init__(self, *answers: Any) -> None:
            super().__init__()
            self.answers = list(answers)

        def call(self, request: Any) -> Any:
            assert isinstance(request, Join)
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    world = World(3, (Member(identity.task, 0, "n", 1, "a"),))
    lost = CoordinatorUnreachableError("no answer from the coordinator")
    client: Any = Breaks(lost, lost, Joined(pack_world(world)))
    assert register(client, settings, identity) == world
    no_world: Any = Breaks(RendezvousError("there is no next world"))
    with pytest.raises(RendezvousError, match="there is no next world"):
        register(no_world, settings, identity)


@pytest.mark.parametrize("source", ["launcher", "tf_config"])
def test_a_nested_rank_writes_nothing_outside(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
