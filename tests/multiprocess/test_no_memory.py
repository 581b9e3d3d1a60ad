"""On a host without shared memory the ranks use TCP and say why."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import run_job

pytestmark = pytest.mark.multiprocess
WORKER = Path(__file__).with_name("no_memory_worker.py")


@pytest.mark.parametrize(
    ("kind", "reason"), [("refused", "Operation not permitted"), ("full", "No space left on device")]
)
def test_without_shared_memory_tcp_is_used(kind: str, reason: str) -> None:
    done = run_job(WORKER, 2, kind)
    assert done.stdout.count("ok") == 2
    lines = [line for line in done.stderr.splitlines() if "shared memory is not used, all data goes over TCP" in line]
    assert len(lines) == 1, done.stderr
    assert "rank 0 (" in lines[0]
    assert reason in lines[0]
