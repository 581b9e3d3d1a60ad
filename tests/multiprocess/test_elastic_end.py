"""The end of an elastic job's training: ranks that have returned from ``elastic.run`` and live on."""

import json
import re
import sys
from pathlib import Path

import pytest
from launching import Run

pytestmark = [pytest.mark.multiprocess, pytest.mark.kill]
every_fault = pytest.mark.elastic

WORKER = Path(__file__).with_name("elastic_end_worker.py")


def run(directory, story):
    command = [sys.executable, str(WORKER), str(directory), story]
    with Run(("-np", "3", "--min-np", "1", "--", *command)) as job:
        code, _, err = job.finish(120)
        job.wait_until_gone(5.0)
    return code, err


def test_a_rank_missing_the_last_step_ends(tmp_path):
    code, err = run(tmp_path, "miss")  # rank 0 waits for its end
    assert code == 0, err
    assert "worker:2 ends without its last step, which rank 0 has done" in err
    assert "rank 1 (worker:1" in err
    assert "was killed by SIGKILL: the others continued without it" in err
    assert sorted(one.name for one in tmp_path.glob("done-*")) == ["done-0"]


@every_fault
def test_rank_0_failing_after_training_is_fatal(tmp_path):
    code, err = run(tmp_path, "crash")
    assert code != 0, err
    assert re.search(r"rank 0 \(worker:0, pid \d+\) exited with code 5", err), err


@every_fault
def test_a_hanging_exit_delays_no_program_error(tmp_path):
    code, err = run(tmp_path, "hang")  # the others would wait for as long as an operation may take
    assert code == 1, err
    assert "the job failed: rank 1 (worker:1" in err
    assert "ValueError: the data is rotten" in err


@every_fault
def test_a_replacement_stopped_while_joining_is_dropped(tmp_path):
    code, err = run(tmp_path, "stopped")  # the others would wait for as long as a start and an operation may take
    assert code == 0, err
    gone = r"rank \d \(worker:3, pid \d+\) sent no heartbeat for \d+ s, and the others waited for it to connect"
    assert re.search(gone, err), err


@every_fault
def test_others_continue_without_a_completed_rank(tmp_path):
    code, err = run(tmp_path, "lives")  # it waits for their end
    assert code == 0, err
    assert (tmp_path / "done-0").exists()


@every_fault
def test_a_second_training_outlasts_lost_ranks_too(tmp_path):
    code, err = run(tmp_path, "twice")
    assert code == 0, err
    for task in (0, 2):
        assert json.loads((tmp_path / f"second-{task}").read_text())["sizes"] == [3] * 5 + [2] * 5


def test_a_job_without_worlds_times_out():
    with Run(("-np", "2", "--min-np", "1", "--elastic-timeout", "4", "--", "sh", "-c", "kill -9 $$")) as job:
        code, _, err = job.finish(60)
    assert code == 137, err
    assert re.search(r"the job failed: rank \d \(worker:\d, pid \d+\) was killed by SIGKILL", err), err


@pytest.mark.parametrize("status", [1, 127])
def test_a_program_failing_everywhere_ends_at_once(status):
    with Run(("-np", "2", "--min-np", "1", "--", "sh", "-c", f"echo what >&2; exit {status}")) as job:
        code, _, err = job.finish(60)  # the elastic timeout is ten times that
    assert code == status, err
    assert re.search(rf"the job failed: rank \d \(worker:\d, pid \d+\) exited with code {status}", err), err
