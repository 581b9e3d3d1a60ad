"""Where each rank of a job is: asked for by people, and shown by the launcher when ranks wait for another."""

import json
import os
import signal
import subprocess
import sys
from itertools import dropwhile, takewhile
from pathlib import Path

import psutil
import pytest
from launching import Run, agents, run, until
from time_limits import within

from tfcollective._base.processes import STACKS_SIGNAL
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.records import running_jobs

pytestmark = pytest.mark.multiprocess

WORKER = Path(__file__).with_name("hang_worker.py")
RANKS = 3


def job_of(tmp_path, how, *options, ranks=RANKS):
    command = (sys.executable, str(WORKER), how, str(tmp_path))
    env = {"TFCOLLECTIVE_RUNTIME_DIR": str(tmp_path / "jobs")}
    return Run(("-np", str(ranks), *options, "--", *command), env=env)


def innermost(task):
    """The function and the line of the program in which a rank is."""
    threads = () if task.stacks is None else task.stacks.threads
    own = [(frame.function, frame.line) for frame in (threads[0] if threads else ()) if frame.file == str(WORKER)]
    return own[-1] if own else ("", 0)


def dump_until(tmp_path, condition):
    """Asks the job again and again until what it answers is as it has to be; returns the job's name and that."""
    found = []

    def asks():
        records = list(running_jobs(tmp_path / "jobs"))
        if not records:
            return False
        with CoordinatorClient(records[0].coordinator, records[0].key, records[0].job_id) as client:
            found[:] = [records[0].job_id, {one.task.index: one for one in client.dump()}]
        return condition(found[1])

    until(asks, 90, lambda: f"{found}")
    return found


def are_apart(tasks):
    """Rank 1 is in lost(), and the others are in the last line."""
    places = [innermost(tasks[rank]) for rank in sorted(tasks)]
    last = ("<module>", len(WORKER.read_text().splitlines()))
    return len(places) == RANKS and places[0] == places[2] == last and places[1][0] == "lost"


def is_stopped(task):
    """It was stopped already when it was asked."""
    return task.stacks is not None and task.stacks.activity.kind == "stopped by a signal" and not task.stacks.threads


def call(tmp_path, *words):
    answer = subprocess.run(
        [sys.executable, "-m", "tfcollective", *words],
        env={**os.environ, "TFCOLLECTIVE_RUNTIME_DIR": str(tmp_path / "jobs")},
        capture_output=True,
        text=True,
        timeout=within(60),
        check=False,
    )
    return answer.returncode, answer.stdout, answer.stderr


def test_a_dump_shows_each_rank(tmp_path):
    with job_of(tmp_path, "lock"):
        job, _ = dump_until(tmp_path, are_apart)
        code, out, err = call(tmp_path, "dump", job)
        lines = out.splitlines()
        assert (code, err) == (0, "")
        assert lines[0].startswith("rank 1 (worker:1) on ")
        assert "    lock.acquire()" in lines
        assert any(line.startswith("2 ranks (0, 2): ") for line in lines)
        assert "TFCOLLECTIVE" not in out
        code, out, err = call(tmp_path, "dump", "--json", job)
        assert (code, err, json.loads(out)["job"]) == (0, "", job)
        assert json.loads(out)["tasks"][0]["rank"] == 1


def test_a_job_that_does_not_run_is_named(tmp_path):
    code, out, err = call(tmp_path, "dump", "job-0")
    assert (code, out) == (70, "")
    assert "job-0: no job of that name runs on this machine" in err


@pytest.mark.parametrize(("how", "does"), [("loop", "computing"), ("c", "waiting")])
def test_ranks_that_never_return_are_shown(tmp_path, how, does):
    with job_of(tmp_path, how):
        _, tasks = dump_until(tmp_path, are_apart)
        assert tasks[1].stacks.activity.kind == does


def test_a_stopped_rank_is_shown_as_stopped(tmp_path):
    with job_of(tmp_path, "stop"):
        _, tasks = dump_until(tmp_path, lambda tasks: len(tasks) == RANKS and is_stopped(tasks[1]))
        assert (tasks[1].stacks.threads, tasks[1].stacks.missing) == ((), "")


def test_dumps_do_not_disturb_training(tmp_path):
    with job_of(tmp_path, "wait") as job:
        dump_until(tmp_path, are_apart)
        for _ in range(2):
            dump_until(tmp_path, are_apart)
        (tmp_path / "go").touch()
        code, _, err = job.finish()
        assert code == 0, err


def test_sigquit_shows_stacks_and_ends_nothing(tmp_path):
    with job_of(tmp_path, "wait") as job:
        dump_until(tmp_path, are_apart)
        job.signal(signal.SIGQUIT)
        lines = dropwhile(lambda line: "the stacks of all processes of the job:" not in line, job.process.stderr)
        shown = list(takewhile(lambda line: "2 ranks (0, 2): " not in line, lines))
        assert any(", in lost" in line for line in shown)
        (tmp_path / "go").touch()
        assert job.finish()[0] == 0


def test_ranks_of_two_agents_are_shown(tmp_path):
    key = tmp_path / "key"
    options = ("--wait-for-agents", "2", "--key-file", str(key), "--network-interface", "lo")
    with job_of(tmp_path, "wait", *options) as job, agents(job, 2, key) as started:
        _, tasks = dump_until(tmp_path, are_apart)
        parents = {psutil.Process(one.stacks.pid).ppid() for one in tasks.values()}
        assert parents == {agent.pid for agent in started}
        (tmp_path / "go").touch()
        assert job.finish()[0] == 0


def test_ranks_of_an_elastic_job_are_shown(tmp_path):
    with job_of(tmp_path, "wait", "--min-np", "1") as job:
        dump_until(tmp_path, are_apart)
        (tmp_path / "go").touch()
        assert job.finish()[0] == 0


def test_a_stall_shows_the_missing_rank_once(tmp_path):
    # Long enough for heartbeats of all ranks: with slow processors others may come late, too.
    with job_of(tmp_path, "fail", "--stall-warning", "6", "--op-timeout", "900") as job:
        shown = list(takewhile(lambda line: ", in lost" not in line, job.process.stderr))
        heads = [line for line in shown if "in a collective operation for rank 1:" in line]
        assert heads[-1].startswith("tfcollective: 2 ranks have waited ")
        (tmp_path / "go").touch()
        code, _, err = job.finish()
    assert code == 1
    report = err[err.index("the job failed: rank 1") :]
    assert "in a collective operation for rank 1:" in report
    assert ", in lost" in report
    assert err.count("in a collective operation for rank 1:") == 1


def test_the_signal_does_not_end_a_program(tmp_path):
    """Not one that has not called init(), nor one that no longer answers, as at the end of the interpreter."""
    ask = f"import os; os.kill(os.getpid(), {int(STACKS_SIGNAL)})"
    forget = f"import faulthandler, tfcollective; tfcollective.init(); faulthandler.unregister({int(STACKS_SIGNAL)})"
    program = f"{ask}; {forget}; {ask}; print('lives')"
    code, out, err = run("-np", "1", "--", sys.executable, "-c", program)
    assert code == 0, err
    assert "lives" in out
