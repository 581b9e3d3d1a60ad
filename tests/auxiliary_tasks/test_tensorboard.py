"""A TensorBoard serves until training has ended, and ends with the process that started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest
from launching import gone, until
from time_limits import within

from tfcollective._base.errors import LaunchError
from tfcollective.auxiliary_tasks.tensorboard import TensorBoardOptions, TensorBoardProcess

pytestmark = pytest.mark.multiprocess
pytest.importorskip("tensorboard")
PARENT = """
import sys
from tfcollective.auxiliary_tasks.tensorboard import TensorBoardOptions, run_tensorboard
class Options(TensorBoardOptions):
    def command(self):
        return [sys.executable, "-c", sys.argv[2]] if len(sys.argv) > 2 else super().command()
run_tensorboard(Options(sys.argv[1], start_timeout=500.0), linger=0.0, on_url=lambda url: print(url, flush=True))
"""
STAND_IN = "import time; print('TensorBoard 2.0 at http://here/ (...)', flush=True); time.sleep(100)"


def start(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-c", PARENT, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def child(process: subprocess.Popen) -> psutil.Process:
    (found,) = psutil.Process(process.pid).children(recursive=True)
    return found


def test_it_serves_until_training_has_ended(tmp_path: Path) -> None:
    with start(str(tmp_path)) as parent:
        url = parent.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), parent.stderr.read()
        with urllib.request.urlopen(f"{url}data/environment", timeout=30) as answer:
            assert str(tmp_path) in answer.read().decode()
        board = child(parent)
        (tmp_path / "training_ended.json").write_text('{"job": null}')
        assert parent.wait(within(30)) == 0
        assert gone(board)


@pytest.mark.kill
def test_it_is_gone_when_its_parent_is_killed(tmp_path: Path) -> None:
    with start(str(tmp_path), STAND_IN) as parent:
        assert parent.stdout.readline() == "http://here/\n", parent.stderr.read()
        board = child(parent)
        os.kill(parent.pid, signal.SIGKILL)
        until(lambda: gone(board))


class Broken(TensorBoardOptions):
    def command(self) -> list[str]:
        return [sys.executable, "-c", "import sys; print('hello'); sys.exit('the port is taken')"]


class Mute(TensorBoardOptions):
    def command(self) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(100)"]


def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"(?s)ended with code 1: .*the port is taken"):
        TensorBoardProcess.start(Broken(tmp_path))
    with pytest.raises(LaunchError, match=r"did not start in 0\.2 s: it said nothing"):
        TensorBoardProcess.start(Mute(tmp_path, start_timeout=0.2))
