"""The script of a job's command, which some platforms send to the nodes."""

import sys

import pytest

from tfcollective._launch.plan.spec import JobSpec


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.touch()
    return path


def test_a_local_script_may_get_another_path(script):
    spec = JobSpec((sys.executable, str(script), "--epochs", "2"), 1)
    assert spec.local_script() == script
    assert spec.with_script("sent/train.py").command == (sys.executable, "sent/train.py", "--epochs", "2")


def test_only_local_scripts_are_sent(script):
    for spec in (
        JobSpec((sys.executable,), 1),
        JobSpec((sys.executable, "-m", "train"), 1),
        JobSpec((sys.executable, str(script.with_name("other.py"))), 1),
        JobSpec((sys.executable, str(script.parent)), 1),
        JobSpec(("bash", str(script)), 1),
        JobSpec((sys.executable, str(script)), 1, cwd="/shared"),
    ):
        assert spec.local_script() is None
