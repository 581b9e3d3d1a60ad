import subprocess
import sys
from dataclasses import replace

import pytest

from tfcollective.control import process as coordinator_process
from tfcollective.control.process import CoordinatorConfig
from tfcollective.errors import CoordinatorError
from tfcollective.timing import TIMING

CONFIG = CoordinatorConfig("j", "ab" * 16, ("worker:0",), 0.01, "127.0.0.1", 0, 1, "warning", "/tmp", ("x",))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit(3)", "ended with exit code 3 before it listened"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL before it listened"),
        ("import time; time.sleep(600)", r"has not begun to listen within 0\.01 s: is this machine too busy"),
    ],
)
def test_a_coordinator_that_does_not_come_up_says_what_became_of_it(program, message, monkeypatch):
    lives_on = "sleep" in program
    start = 0.01 if lives_on else 120.0
    monkeypatch.setattr(coordinator_process, "TIMING", replace(TIMING, agent_start=start))
    monkeypatch.setattr(coordinator_process, "_END_S", 0.01 if lives_on else 120.0)
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    try:
        with pytest.raises(CoordinatorError, match=message):
            coordinator_process._introduce(child, CONFIG)
    finally:
        child.kill()
        child.communicate()
