"""Jobs whose ranks die and that are started again: with a checkpoint they end like undisturbed jobs."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import psutil
import pytest
from launching import Run, run
from time_limits import within

import tfcollective
from tfcollective._base.settings import Settings

pytestmark = [pytest.mark.multiprocess]

STEPS, DIES_AT = 20, 13


def train(directory, victim=None):
    """Follows a gradient that all ranks agree on; rank 0 keeps every third step. Rank `victim` dies the first time."""
    import tfcollective

    tfcollective.init()
    world, rank = tfcollective.get_communicator(), tfcollective.rank()
    checkpoint = directory / "checkpoint.npy"
    state = np.load(checkpoint) if rank == 0 and checkpoint.exists() else np.array([0.0, 1.0])
    started_at, weights = world.broadcast(state, 0)
    for step in range(int(started_at), STEPS):
        if rank == victim and step == DIES_AT and Settings.load().restarts == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        weights -= 0.1 * world.allreduce(np.array([weights * (rank + 1) + step]))[0]
        if rank == 0 and (step + 1) % 3 == 0:
            np.save(directory / "next.npy", np.array([step + 1, weights]))
            os.replace(directory / "next.npy", checkpoint)
    return int(started_at), float(weights), generation()


def generation():
    from tfcollective._control.client.client import CoordinatorClient
    from tfcollective._control.identity import discover
    from tfcollective._control.messages import Status

    me = discover(Settings.load(), {})
    return CoordinatorClient(me.coordinator, me.key).call(Status()).generation


def undisturbed():
    weights = 1.0
    for step in range(STEPS):
        weights -= 0.1 * np.mean([weights * (rank + 1) + step for rank in range(2)])
    return weights


def test_a_function_goes_on_from_its_checkpoint(tmp_path, capfd):
    results = tfcollective.run(train, (tmp_path, 1), np=2, nb_retries=1)
    assert results == [(12, pytest.approx(undisturbed(), rel=1e-12), 2)] * 2
    said = capfd.readouterr().err
    assert "was killed by SIGKILL; all ranks are started again in 1 s (restart 1 of 1)" in said
    assert "tfcollective: the job was started again once:" in said


def test_a_command_goes_on_from_its_checkpoint(tmp_path):
    script = "import sys; sys.path.insert(0, sys.argv[2]); import test_restarts, pathlib; "
    script += "print(*test_restarts.train(pathlib.Path(sys.argv[1]), 0))"
    command = (sys.executable, "-c", script, str(tmp_path), os.path.dirname(__file__))
    log_dir = tmp_path / "logs"
    support = os.pathsep.join([os.environ.get("PYTHONPATH", ""), *(place for place in sys.path if "support" in place)])
    env = {"PYTHONPATH": support.strip(os.pathsep)}
    code, out, err = run("-np", "2", "--max-restarts", "2", "--log-dir", str(log_dir), *command, env=env)
    assert code == 0, err
    assert [(int(step), float(weights)) for _, step, weights, _ in map(str.split, out.splitlines())] == [
        (12, pytest.approx(undisturbed(), rel=1e-12))
    ] * 2
    assert "1. because rank 0 (worker:0, pid " in err
    assert (log_dir / "rank.0" / "stdout").read_text() == ""
    assert (log_dir / "restart.1" / "rank.0" / "stdout").read_text().startswith("12 ")


def test_a_recurring_error_ends_the_job(tmp_path):
    def fail(directory):
        (directory / f"start-{Settings.load().restarts}").touch()
        import no_such_module  # noqa: F401

    with pytest.raises(tfcollective.WorkerFailedError, match="not started again: ModuleNotFoundError comes again"):
        tfcollective.run(fail, (tmp_path,), max_restarts=3)
    assert [path.name for path in tmp_path.iterdir()] == ["start-0"]


def test_the_last_failure_is_the_job_s(tmp_path):
    def fail():
        tfcollective.init()
        raise OSError(f"start {Settings.load().restarts}")

    with pytest.raises(tfcollective.WorkerFailedError, match="OSError: start 1") as caught:
        tfcollective.run(fail, max_restarts=1)
    assert "1. because rank 0 (worker:0, pid" in str(caught.value)
    assert "OSError: start 0" in str(caught.value)


def test_ctrl_c_does_not_start_it_again(tmp_path):
    program = textwrap.dedent(
        """
        import os, sys, time
        print("started", os.environ["TFCOLLECTIVE_RESTARTS"], flush=True)
        time.sleep(600)
        """
    )
    with Run(("-np", "1", "--max-restarts", "5", sys.executable, "-c", program)) as job:
        assert "started 0" in job.wait_for_line("started")
        job.signal(signal.SIGINT)
        code, out, err = job.finish(30)
        job.wait_until_gone()
    assert (code, out) == (130, "")
    assert "started again" not in err


def test_a_kill_between_two_starts_leaves_nothing(tmp_path):
    program = "import os, time\nif os.environ['TFCOLLECTIVE_RESTARTS'] == '0': os.abort()\ntime.sleep(600)"
    with Run(("-np", "2", "--max-restarts", "9", sys.executable, "-c", program)) as job:
        for line in job.process.stderr:
            if "are started again" in line:
                break
        job.signal(signal.SIGTERM)  # before the second start as a rule; either way it is the end
        assert job.finish(30)[0] in (-signal.SIGTERM, 143)
        job.wait_until_gone(15)


def test_process_1_hears_signals_between_starts(tmp_path):
    """The kernel drops signals for which process 1 has no handler."""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no PID namespaces here for this user")
    fails = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    job = [sys.executable, "-m", "tfcollective", "run", "-np", "1", "--max-restarts", "9", *fails]
    env = {**os.environ, "TFCOLLECTIVE_RUNTIME_DIR": str(tmp_path / "jobs")}
    with subprocess.Popen([*inside, *job], stderr=subprocess.PIPE, text=True, env=env) as outside:
        try:
            for line in outside.stderr:
                if "started again in 8 s" in line:
                    break
            (launcher,) = psutil.Process(outside.pid).children()
            launcher.send_signal(signal.SIGTERM)
            said = outside.communicate(timeout=within(6))[1]  # and not after the pause
        finally:
            outside.kill()
    assert outside.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in said
