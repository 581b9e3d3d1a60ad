"""Variables on another device than CPU:0, as on a machine with a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import second_device
from jobs import HIDDEN, QUIET
from time_limits import within

pytest.importorskip("tensorflow")

pytestmark = pytest.mark.tensorflow


def test_traced_steps_run_and_compare_replicas() -> None:
    script = Path(__file__).with_name("placement_steps.py")
    path = os.pathsep.join([str(HIDDEN), str(Path(second_device.__file__).parent)])
    done = subprocess.run(
        [sys.executable, second_device.__file__, str(script)],
        env={**os.environ, **QUIET, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=within(120),
        check=False,
    )
    assert done.stdout.splitlines() == ["fit 2", "tape 2", "spread 2"], done.stdout + done.stderr
