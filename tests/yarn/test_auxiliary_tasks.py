"""An evaluator on the real YARN that does not do its work to the end: training goes on, and the report says it."""

import os
import re
import signal
import threading

import pytest
import yarn_jobs

import tfcollective
from tfcollective import TaskSpec

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(600)]

SPECS = dict.fromkeys(("chief", "worker", "evaluator"), TaskSpec("400 MiB", 1))


def row(shown, task):
    """A task's row of the table at the end."""
    return next(line for line in shown.splitlines() if line.split()[:1] == [task])


def test_an_evaluator_that_raises_is_named(yarn, on_yarn, capfd):
    run = {"task_specs": SPECS, "kwargs": {"fails": True}}
    assert tfcollective.run(yarn_jobs.with_evaluator, ("evaluating",), **run, **on_yarn()) == [2.0, 2.0]
    said = capfd.readouterr().err
    assert "warning: evaluator:0 (pid " in said
    assert "exited with code 1; training did not need it" in said
    assert "ValueError: nothing to evaluate" in said
    assert "  failed  " in row(said, "evaluator:0")
    assert "  succeeded  " in row(said, "chief:0")
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"


def test_an_evaluator_with_killed_container_is_named(yarn, on_yarn, tmp_path, capfd):
    def kill():
        yarn.until((tmp_path / "evaluating").exists, "the evaluator runs", 300)
        os.kill(yarn.process(yarn.only_app(), "tfcollective_launchers.yarn.container", "evaluator-0"), signal.SIGKILL)
        (tmp_path / "go").touch()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    run = {"task_specs": SPECS, "kwargs": {"fails": False}}
    assert tfcollective.run(yarn_jobs.with_evaluator, ("go",), **run, **on_yarn()) == [2.0, 2.0]
    thread.join(60)
    said = capfd.readouterr().err
    # Also where the node manager has asked the agent to end, and the agent has reported that.
    assert re.search(r"warning: evaluator:0: .*was ended.*; training did not need it", said)
    assert "evaluator-0" in said
    assert re.search(r"  (lost|stopped)  ", row(said, "evaluator:0"))
    assert "  succeeded  " in row(said, "worker:0")
    assert yarn.latest()["finalStatus"] == "SUCCEEDED"
