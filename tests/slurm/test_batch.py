"""Jobs that are submitted: the script, the output, the exit code, the end."""

import os
import re
import signal
import subprocess
import sys

import pytest
import slurm_testbed
from launching import JOIN, Run, until
from time_limits import within

import tfcollective

pytestmark = [pytest.mark.slurm, pytest.mark.multiprocess, pytest.mark.timeout(900)]

COMMAND = ("--launcher", "slurm", "-np", "2", "--nodes", "2")
MEET = f"{JOIN}\nc = join(); print('I am', rank, 'of', me.world_size, os.environ['SLURMD_NODENAME'], flush=True)\n"
WAITS = f"{MEET}open(f'here-{{rank}}', 'w').close(); time.sleep(600)"


@pytest.fixture
def submit(slurm, tmp_path):
    """Starts a job whose ranks run this text, and follows it."""
    started = []

    def start(program, *options, command=COMMAND, **environ):
        one = Run((*command, *options, "python", "-c", program), env={**slurm.environ, **environ}, cwd=str(tmp_path))
        started.append(one)
        return one

    yield start
    for one in started:
        one.__exit__()


def all_run(folder):
    return lambda: len(list(folder.glob("here-*"))) == 2


def test_output_and_exit_code_are_the_ranks(submit, slurm, tmp_path):
    job = submit(f"{MEET}c.call(Leave(me.task))")
    code, out, err = job.finish(120)
    assert code == 0, err + out
    assert sorted(re.findall(r"I am (\d of 2 \w+)", out)) == ["0 of 2 node1", "1 of 2 node2"]
    (number,) = re.findall(r"job (\d+): submitted", err)
    assert f"job {number}: running on node[1-2], output in {tmp_path}/slurm-{number}.out" in err
    assert slurm.job(number)["JobState"] == "COMPLETED"
    job.wait_until_gone(10.0)


def test_the_code_of_the_rank_that_failed_first(submit, slurm):
    code, out, err = submit(f"{MEET}wait_until(2, 'running')\nif rank == 1: sys.exit(5)\ntime.sleep(600)").finish(120)
    assert code == 5, err
    assert "rank 1 (worker:1" in out
    assert out.count("rank 1 (worker:1") == 1
    assert "rank 1" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_person_stops_it(submit, slurm, tmp_path, number, code):
    job = submit(WAITS)
    until(all_run(tmp_path), 120)
    (slurm_job,) = slurm.run("squeue", "-h", "-o", "%A").stdout.split()
    job.signal(number)
    found, out, err = job.finish(120)
    assert found == code, err
    assert f"stopped by {signal.Signals(number).name}" in err
    assert "stopped by SIGTERM" in out  # the launcher in the allocation
    assert slurm.job(slurm_job)["JobState"] == "CANCELLED"
    job.wait_until_gone(20.0)


@pytest.mark.kill
def test_the_job_goes_on_without_its_submitter(submit, slurm, tmp_path):
    here = f"{MEET}open(f'here-{{rank}}', 'w').close()"
    job = submit(f"{here}\nwhile not os.path.exists('go'): time.sleep(0.1)\nc.call(Leave(me.task))")
    until(all_run(tmp_path), 120)
    (number,) = slurm.run("squeue", "-h", "-o", "%A").stdout.split()
    job.signal(signal.SIGKILL)
    job.process.wait(within(20))

    def tfcollective(*words):
        return slurm.run(sys.executable, "-m", "tfcollective", *words).stdout

    assert "state: running" in tfcollective("status", number)
    # Its coordinator is asked by a step on its node, which a busy machine may start too late.
    until(lambda: "worker:1" in tfcollective("status", number), 60)
    (tmp_path / "go").touch()
    slurm.wait_for_end(number)
    assert slurm.job(number)["ExitCode"] == "0:0"
    assert "I am 1 of 2" in tfcollective("logs", number)


def test_detached_and_killed(submit, slurm, tmp_path):
    code, _, err = submit(WAITS, "--detach").finish(60)
    assert code == 0, err
    (number,) = re.findall(r"tfcollective status\|logs\|kill (\d+)", err)
    until(all_run(tmp_path), 120)
    slurm.run(sys.executable, "-m", "tfcollective", "kill", number)
    assert slurm.job(number)["JobState"] == "CANCELLED"


def test_a_job_queued_too_long_is_cancelled(submit, slurm):
    with slurm.allocation(1, 1, 1):
        job = submit(MEET, "--allocation-timeout", "3")
        code, _, err = job.finish(120)
    assert code == 69, err
    assert re.search(r"job \d+ was still pending \(\w+\) after 3 s", err), err


def test_what_sbatch_does_not_take(submit):
    code, _, err = submit(MEET, "--partition", "gone").finish(60)
    assert code == 70, err
    assert "sbatch does not take the job: sbatch: error: invalid partition specified: gone" in err


def test_the_time_limit_ends_it_in_order(submit, slurm, tmp_path):
    job = submit(WAITS, "--sbatch-args", "--signal=B:TERM@300", "--time", "60")
    until(all_run(tmp_path), 120)
    slurm.run("scontrol", "update", f"jobid={slurm.newest()}", "timelimit=5")  # now it is sent at once
    code, out, err = job.finish(180)
    assert code == 143, err + out
    assert "stopped by SIGTERM" in out


def test_a_job_that_is_requeued_goes_on(submit, slurm, tmp_path):
    program = (
        f"{MEET}print('restarts', os.environ['TFCOLLECTIVE_RESTARTS'], flush=True)\n"
        "again = os.environ['TFCOLLECTIVE_RESTARTS'] != '0'\n"
        "open(f'here-{rank}', 'w').close()\n"
        "time.sleep(0 if again else 600); c.call(Leave(me.task))"
    )
    job = submit(program, "--requeue", "--log-dir", str(tmp_path / "logs"))
    until(all_run(tmp_path), 120)
    (number,) = slurm.run("squeue", "-h", "-o", "%A").stdout.split()
    slurm.run("scancel", "--batch", "--signal=TERM", number)  # as --signal=B:TERM@60 does
    code, out, err = job.finish(300)
    assert code == 0, err + out
    assert f"job {number} goes back into the queue" in out
    assert {*re.findall(r"restarts (\d)", out)} == {"0", "1"}
    assert slurm.job(number)["Restarts"] == "1"
    assert (tmp_path / "logs" / "restart.1" / "rank.0" / "stdout").exists()


def test_the_printed_script_is_what_runs(slurm, tmp_path):
    words = [sys.executable, "-m", "tfcollective", "run", *COMMAND, "--print-plan", "--env", "A=b c"]
    program = f"{MEET}print('A is', os.environ['A']); c.call(Leave(me.task))"
    script = slurm.run(*words, "python", "-c", program).stdout
    assert "#SBATCH --ntasks=2" in script
    (tmp_path / "job.sh").write_text(script)
    output = f"--output={tmp_path}/out"
    done = subprocess.run(
        ["sbatch", "--wait", output, str(tmp_path / "job.sh")],
        env={**os.environ, **slurm.environ},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=within(120),
    )
    out = (tmp_path / "out").read_text()
    assert done.returncode == 0, out
    assert out.count("A is b c") == 2


def add(one, other):
    import tfcollective as tfc

    tfc.init()
    return tfc.rank(), os.environ["SLURMD_NODENAME"], one + other


@pytest.mark.tensorflow
def test_a_function(slurm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    found = tfcollective.run(add, (1,), {"other": 2}, np=2, launcher="slurm", platform={"nodes": 2})
    assert found == [(0, "node1", 3), (1, "node2", 3)]
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("slurm-")] == []


def fail():
    raise ValueError("the disk is on fire")


def test_a_function_that_fails(slurm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(tfcollective.WorkerFailedError, match="ValueError: the disk is on fire"):
        tfcollective.run(fail, np=2, launcher="slurm")


@pytest.mark.tensorflow
def test_a_cluster(slurm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    with tfcollective.cluster(np=2, launcher="slurm", platform={"nodes": 2}) as made:
        assert [made.run(pow, 2, 3) for _ in range(2)] == [[8, 8]] * 2


GPUS = (
    MEET
    + "print('gpus', os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ['SLURMD_NODENAME'])\nc.call(Leave(me.task))"
)


@pytest.mark.parametrize(("options", "seen"), [((), {"0,1"}), (("--gpus-per-proc", "1"), {"0", "1"})])
def test_gpus_are_those_of_the_allocation(submit, options, seen):
    nodes = ("--nodes", "2", "--ntasks-per-node", "2", "--gres", f"gpu:{slurm_testbed.GPUS}")
    job = submit(GPUS, *options, command=("--launcher", "slurm", "-np", "4", *nodes))
    code, out, err = job.finish(120)
    assert code == 0, err + out
    found = re.findall(r"gpus (\S+) (\w+)", out)
    assert len(found) == 4
    assert {gpus for gpus, _ in found} == seen
    assert {node for _, node in found} == {"node1", "node2"}


def test_a_cancelled_requeued_job_ends_for_good(submit, slurm, tmp_path):
    job = submit(WAITS, "--requeue")
    until(all_run(tmp_path), 120)
    (number,) = slurm.run("squeue", "-h", "-o", "%A").stdout.split()
    slurm.run("scancel", number)
    code, out, err = job.finish(120)
    assert code == 75, err
    assert f"job {number} has ended: it was cancelled" in err
    assert "goes back into the queue" not in out
    assert slurm.job(number)["JobState"] == "CANCELLED"


def test_agents_run_beside_other_steps(slurm, tmp_path):
    """Steps of people's own hold the cores and the memory: srun would wait for them forever without --overlap."""
    script = f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks=2 --cpus-per-task=2 --output={tmp_path}/out
srun --exact sleep 600 &
sleep 1
exec {sys.executable} -m tfcollective run --launcher slurm -- sh -c 'echo cores $SLURM_CPUS_ON_NODE'
"""
    (tmp_path / "job.sh").write_text(script)
    done = slurm.run("sbatch", "--wait", str(tmp_path / "job.sh"), check=False)
    out = (tmp_path / "out").read_text()
    assert done.returncode == 0, out
    assert out.count("cores 2") == 2
    assert "step creation temporarily disabled" not in out


def test_what_slurm_would_do_is_known_before(slurm):
    check = (sys.executable, "-m", "tfcollective", "check", "--launcher", "slurm")
    done = slurm.run(*check, "--queue", "all", "--nodes", "2")
    assert re.search(r"submission: Job \d+ to start at", done.stdout), done.stdout
    done = slurm.run(*check, "--queue", "none", check=False)
    assert done.returncode == 1
    assert re.search(r"submission: .*invalid partition specified: none", done.stdout), done.stdout
    done = slurm.run("salloc", "--nodes", "2", "--ntasks-per-node", "2", *check)
    assert re.search(r"allocation: job \d+, nodes with their tasks: node1 \(2\), node2 \(2\)", done.stdout), done.stdout
