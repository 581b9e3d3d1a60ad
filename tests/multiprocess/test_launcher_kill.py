"""After any process is killed, nothing is left: no workers, no children of theirs, no agent, no key."""

import os
import re
import signal
import time

import psutil
import pytest
from launching import JOIN, Run, until
from time_limits import within

pytestmark = [pytest.mark.multiprocess, pytest.mark.kill]

# A rank with a child in a session of its own; both are deaf to everything but SIGKILL.
DEAF_FAMILY = (
    JOIN
    + """
import signal, subprocess
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
join()
print("ready", flush=True)
time.sleep(1000)
"""
)
POLITE = JOIN + "join(); print('ready', flush=True); time.sleep(1000)"


def start(program, ranks=2, options=()):
    job = Run(("-np", str(ranks), *options, "python", "-c", program))
    for _ in range(ranks):
        job.wait_for_line("ready")
    return job


@pytest.mark.parametrize("program", [POLITE, DEAF_FAMILY], ids=["polite", "deaf"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_everything(program, number):
    with start(program, options=("--grace", "1")) as job:
        begin = time.monotonic()
        job.signal(number)
        code, _, err = job.finish()
        assert time.monotonic() - begin < within(5.5)
        assert code == 128 + number
        assert f"stopped by {number.name}" in err
        job.wait_until_gone(0.5)


SAVES = (
    JOIN
    + """
import signal
def save(*unused):
    print("saving", flush=True)
    time.sleep(3.0)  # longer than ranks have after a failure
    print("saved", flush=True)
    sys.exit(0)
if rank == 0:
    signal.signal(signal.SIGTERM, save)
join()
print("ready", flush=True)
time.sleep(1000)
"""
)


def test_a_rank_may_checkpoint_before_it_ends():
    with start(SAVES) as job:
        job.signal(signal.SIGTERM)
        job.wait_for_line("saving")
        job.signal(signal.SIGTERM)  # platforms repeat themselves, and add SIGHUP
        job.signal(signal.SIGHUP)
        job.wait_for_line("saved")
        assert job.finish()[0] == 128 + signal.SIGTERM
        job.wait_until_gone(0.5)


def test_a_grace_that_is_over_ends_it():
    with start(SAVES, options=("--grace", "0.5")) as job:
        job.signal(signal.SIGTERM)
        code, out, _ = job.finish()
        assert code == 128 + signal.SIGTERM
        assert "saving" in out
        assert "saved" not in out


def sent_after_two_ctrl_c():
    """The signals that the agent sends to its ranks."""
    with start(DEAF_FAMILY, options=("--log-level", "info")) as job:
        job.signal(signal.SIGINT)
        said = ""
        while "sending signal 2 " not in said:
            said = job.process.stderr.readline()
            assert said, "the job has ended without a signal to its ranks"
        job.signal(signal.SIGINT)
        code, _, err = job.finish()
        assert code == 130
        job.wait_until_gone(0.5)
    return {int(number) for number in re.findall(r"agent: sending signal (\d+) ", err)}


def test_a_second_ctrl_c_ends_it_at_once():
    # Where the second one comes late, because the machine does something else, SIGTERM has been sent already: not
    # again and again.
    assert any(sent_after_two_ctrl_c() in ({signal.SIGKILL}, {signal.SIGINT, signal.SIGKILL}) for _ in range(3))


@pytest.mark.parametrize("program", [POLITE, DEAF_FAMILY], ids=["polite", "deaf"])
def test_sigkill_of_the_launcher(program):
    with start(program) as job:
        job.signal(signal.SIGKILL)
        job.wait_until_gone(5.0)


@pytest.mark.parametrize("program", [POLITE, DEAF_FAMILY], ids=["polite", "deaf"])
def test_sigkill_of_the_agent(program):
    with start(program) as job:
        agent = job.agent()
        agent.kill()
        code, _, err = job.finish()
        assert code == 70
        assert f"the agent (pid {agent.pid}) was killed by SIGKILL" in err
        job.wait_until_gone(0.5)


@pytest.mark.parametrize("program", [POLITE, DEAF_FAMILY], ids=["polite", "deaf"])
def test_sigkill_of_a_rank(program):
    with start(program, ranks=3) as job:
        victim = next(worker for worker in job.workers() if rank_of(worker) == 1)
        begin = time.monotonic()
        victim.kill()
        code, _, err = job.finish()
        assert time.monotonic() - begin < within(5.0)
        assert code == 137
        assert f"the job failed: rank 1 (worker:1, pid {victim.pid}) was killed by SIGKILL" in err
        job.wait_until_gone(0.5)


def test_a_stopped_rank_is_ended_too():
    with start(POLITE) as job:
        stopped, other = job.workers()
        stopped.suspend()
        other.kill()
        assert job.finish(10)[0] == 137
        job.wait_until_gone(0.5)


def test_a_stopped_rank_keeps_no_job_alive():
    stops = JOIN + "c = join(); os.kill(os.getpid(), 19) if rank else c.call(Leave(me.task))"
    with Run(("-np", "2", "--op-timeout", "1", "python", "-c", stops)) as job:
        code, _, err = job.finish(40)
        assert code == 137
        assert "the job failed: rank 1 (worker:1, pid " in err
        assert re.search(r"sent no heartbeat for \d+ s .* while it was stopped, and was killed", err)
        job.wait_until_gone(0.5)


@pytest.mark.long
def test_a_busy_silent_rank_is_not_ended():
    """A call into C that holds Python's lock lets no thread of the rank send a heartbeat."""
    busy = JOIN + "import ctypes; c = join(); ctypes.PyDLL(None).sleep(18); c.call(Leave(me.task))"
    with Run(("-np", "2", "--op-timeout", "1", "python", "-c", busy)) as job:
        code, _, err = job.finish(60)
        assert code == 0, err
        for rank in range(2):
            assert re.search(rf"rank {rank} \(.*sent no heartbeat for \d+ s .* is not stopped", err)


def test_a_stopped_agent_does_not_outlive_the_launcher():
    with start(POLITE) as job:
        agent = job.agent()
        agent.suspend()
        job.signal(signal.SIGKILL)
        agent.resume()
        job.wait_until_gone(5.0)


def test_children_of_a_successful_rank_are_ended():
    program = (
        "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True); print('ready', flush=True)"
    )
    with start(program) as job:
        assert job.finish(10)[0] == 0
        job.wait_until_gone(0.5)


def test_a_launcher_that_dies_at_birth_leaves_nothing():
    for delay in (0.05, 0.15, 0.25, 0.35, 0.5):
        with Run(("-np", "2", "sleep", "1000")) as job:
            time.sleep(delay)  # the moment is the point of the test
            job.signal(signal.SIGKILL)
            job.wait_until_gone(5.0)


def test_the_next_job_clears_killed_jobs_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TFCOLLECTIVE_RUNTIME_DIR", str(tmp_path / "jobs"))
    with start(POLITE) as job:
        job.signal(signal.SIGKILL)
        job.wait_until_gone(5.0)
    assert len(list((tmp_path / "jobs").iterdir())) == 1
    with start(POLITE) as job:
        until(lambda: len(list((tmp_path / "jobs").iterdir())) == 1)
        job.signal(signal.SIGTERM)
        job.finish()
    assert list((tmp_path / "jobs").iterdir()) == []


def rank_of(worker: psutil.Process) -> int:
    return int(worker.environ()["TFCOLLECTIVE_TASK"].rpartition(":")[2])


def test_our_own_process_is_not_one_of_them():
    with start(POLITE, ranks=1) as job:
        assert os.getpid() not in {process.pid for process in job.processes()}
        assert len(job.processes()) == 3  # launcher, agent, rank


def test_ctrl_z_suspends_nothing():
    with start(POLITE) as job:
        job.signal(signal.SIGTSTP)
        time.sleep(0.3)  # a stopped launcher would not answer
        assert psutil.Process(job.process.pid).status() != psutil.STATUS_STOPPED
        job.signal(signal.SIGTERM)
        code, _, err = job.finish()
        assert code == 128 + signal.SIGTERM
        assert "a running job cannot be suspended" in err
