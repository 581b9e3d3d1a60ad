"""What of its environment a member of a world may take for its own agent's."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launching import until

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

    def leave(self, _task: Any) -> None:
        pass

    def close(self) -> None:
        pass


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
