"""``tfcollective run`` with real processes: what they get, what they show, how the job ends."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from launching import JOIN, MEET, Run, environment_of, run, until, words_of
from time_limits import within

pytestmark = pytest.mark.multiprocess


def python(program):
    return ("python", "-c", program)


def test_exactly_n_processes_with_their_ranks(tmp_path):
    path = f"os.path.join({str(tmp_path)!r}, str(os.getpid()))"
    program = f"import os; open({path}, 'w').write(os.environ['TFCOLLECTIVE_TASK'])"
    code, _, _ = run("-np", "3", *python(program))
    assert code == 0
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["worker:0", "worker:1", "worker:2"]


def test_lines_have_ranks_and_progress_bars_survive():
    program = "import sys; print('out'); sys.stderr.write('err\\n'); sys.stdout.write('1/2\\r2/2\\n')"
    code, out, err = run("-np", "3", *python(program))
    assert code == 0
    for rank in range(3):
        assert f"[{rank}]<stdout>: out\n" in out.replace("\r", "\n")
        assert f"[{rank}]<stderr>: err\n" in err
    assert out.count("]<stdout>: 2/2") == 3


def test_without_a_prefix():
    assert run("-np", "1", "--no-prefix", *python("print('a\\rb')"))[1].encode() in (b"a\rb\n", b"a\nb\n")


def test_an_interface_that_does_not_exist_is_noted():
    code, _, err = run("-np", "1", "--network-interface", "nowhere0", "true")
    assert code == 0
    assert "--network-interface: no interface here is or lies in nowhere0; there are: lo" in err
    assert "--network-interface" not in run("-np", "1", "--network-interface", "lo", "true")[2]


def test_the_log_directory_keeps_the_bytes(tmp_path):
    program = "import sys; sys.stdout.buffer.write(b'\\xff 1/2\\r2/2'); sys.stderr.write('e')"
    code, _, _ = run("-np", "2", "--log-dir", str(tmp_path / "logs"), *python(program))
    assert code == 0
    for rank in range(2):
        assert (tmp_path / f"logs/rank.{rank}/stdout").read_bytes() == b"\xff 1/2\r2/2"
        assert (tmp_path / f"logs/rank.{rank}/stderr").read_bytes() == b"e"


def test_environment_and_directory(tmp_path):
    program = "import os; print(os.environ['A'], os.environ['OMP_NUM_THREADS'], os.getcwd())"
    _, out, _ = run("-np", "2", "--env", "A=x=y", *python(program), cwd=str(tmp_path), env={"OMP_NUM_THREADS": "5"})
    assert f"[1]<stdout>: x=y 5 {tmp_path}" in out


@pytest.mark.parametrize(
    ("program", "code", "text"),
    [
        ("raise SystemExit(3)", 3, "exited with code 3"),
        ("raise ValueError('oops')", 1, "ValueError: oops"),
        ("import os; os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
        ("import os; os.abort()", 134, "was killed by SIGABRT"),
    ],
)
def test_the_first_failure_gives_the_exit_code(program, code, text):
    waits = f"import os, time\nif os.environ['TFCOLLECTIVE_TASK'] == 'worker:1':\n  {program}\ntime.sleep(60)"
    start = time.monotonic()
    found, _, err = run("-np", "3", *python(waits))
    assert time.monotonic() - start < within(30)
    assert found == code
    assert "the job failed: rank 1 (worker:1, pid " in err
    assert text in err


def test_a_failed_rank_that_hangs_is_killed():
    """As one of JAX does, which waits at its end for ranks that wait for it."""
    program = """
import atexit, time, tfcollective
tfcollective.init()
atexit.register(time.sleep, 600)
if tfcollective.rank() == 1: raise ValueError("oops")
time.sleep(600)
"""
    code, _, err = run("-np", "2", *python(program))
    assert code == 1
    assert re.search(r"rank 1 \(.*\) had not ended 10 s after its error, and was killed \(ValueError: oops\)", err), err
    assert "then rank 0" in err


def test_ranks_meet_at_a_port_that_is_held():
    code, out, err = run("-np", "3", "--no-prefix", *python(MEET))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["held", "met 1", "met 2"]


def test_a_rank_failing_soon_after_may_explain(tmp_path):
    program = """
import os, sys, time
from pathlib import Path
pid, up = Path(sys.argv[1], "pid"), Path(sys.argv[1], "up")
if os.environ["TFCOLLECTIVE_TASK"] == "worker:1":
    Path(sys.argv[1], "new").write_text(str(os.getpid()))
    Path(sys.argv[1], "new").rename(pid)
    while not up.exists(): time.sleep(0.01)  # the other rank makes it
    sys.exit(3)
while not pid.exists(): time.sleep(0.01)  # the other rank makes it
up.touch()
try:
    while True:
        os.kill(int(pid.read_text()), 0)
        time.sleep(0.01)  # until the agent, whose child it is, has seen its end
except ProcessLookupError:
    sys.exit("because")
"""
    code, _, err = run("-np", "2", *python(program), str(tmp_path))
    assert code == 3
    assert "[0]<stderr>: because" in err
    assert "then rank 0 (worker:0" in err


def test_a_command_without_init_gets_one_warning():
    code, _, err = run("-np", "2", "true")
    assert code == 0
    assert [line for line in err.splitlines() if "warning" in line] == [
        "tfcollective: warning: no rank called tfcollective.init(): they were apart unless JAX or torch connected them"
    ]


def test_ranks_that_meet_get_no_warning():
    code, out, err = run(
        "-np", "3", "--log-level", "error", *python(JOIN + "c = join(); c.call(Leave(me.task)); print('met')")
    )
    assert code == 0
    assert "tfcollective: " not in err
    assert out.count("met") == 3


def test_a_job_announces_beginning_and_completion():
    code, _, err = run("-np", "3", *python(JOIN + "c = join(); c.call(Leave(me.task))"))
    first, last = (line for line in err.splitlines() if line.startswith("tfcollective: "))
    assert code == 0
    assert re.fullmatch(r"tfcollective: 3 ranks on this machine, (\d+ cores? each|which share \d+ cores?)", first)
    assert re.fullmatch(r"tfcollective: the job is complete, after \d+ s", last)


def test_an_early_end_stops_others_waiting():
    start = time.monotonic()
    code, _, err = run("-np", "3", *python(JOIN + "wait_until(2, 'waiting') or sys.exit(5) if rank == 2 else join()"))
    assert time.monotonic() - start < within(30)
    assert code == 5
    assert "RendezvousError: worker:2 (rank 2, pid " in err
    assert "exited with code 5 before it had joined the job with init()" in err
    assert "the job failed: rank 2 (worker:2" in err


def test_an_early_successful_end_is_named():
    code, _, err = run("-np", "2", *python(JOIN + "sys.exit(0) if rank == 0 else (time.sleep(.5), join())"))
    assert code == 1
    assert "worker:0 (rank 0, pid " in err
    assert "exited with code 0 before it had joined the job with init()" in err


def test_the_start_timeout_names_who_is_missing():
    program = JOIN + "time.sleep(60) if rank else join()"
    start = time.monotonic()
    code, _, err = run("-np", "3", "--start-timeout", "1", *python(program))
    assert time.monotonic() - start < within(30)
    assert code == 69
    assert "1 of 3 tasks joined within 1 s; missing: worker:1, worker:2" in err


def test_status_shows_the_running_job(tmp_path):
    env = {"TFCOLLECTIVE_RUNTIME_DIR": str(tmp_path / "jobs")}  # other tests' jobs come and go
    asking = {"env": {**os.environ, **env}, "text": True, "timeout": within(60)}
    with Run(("-np", "2", *python(JOIN + "join(); print('joined', flush=True); time.sleep(60)")), env) as job:
        job.wait_for_line("joined")
        job.wait_for_line("joined")
        listed = subprocess.check_output([sys.executable, "-m", "tfcollective", "status", "--json"], **asking)
        mine = [one for one in json.loads(listed) if one["pid"] == job.process.pid]
        assert [(task["rank"], task["state"], task["info"]) for task in mine[0]["tasks"]] == [
            (0, "running", {"completed": 7}),
            (1, "running", {"completed": 7}),
        ]
        assert {task["pid"] for task in mine[0]["tasks"]} == {worker.pid for worker in job.workers()}
        table = subprocess.check_output([sys.executable, "-m", "tfcollective", "status"], **asking)
        assert mine[0]["job"] in table
        assert "worker:1" in table


def test_neither_argv_nor_environment_holds_the_key(tmp_path):
    program = JOIN + "join(); print('joined', me.key.hex(), flush=True); time.sleep(60)"
    with Run(("-np", "2", *python(program))) as job:
        key = job.wait_for_line("joined").split()[-1]
        assert len(key) == 64
        for process in job.processes():
            assert key not in " ".join(words_of(process))
            assert key not in " ".join(environment_of(process).values())


def test_a_page_follows_a_job_to_its_stop():
    with Run(("-np", "2", "--web", *python(JOIN + "join(); print('joined', flush=True); time.sleep(60)"))) as job:
        url = next(line for line in job.process.stderr if "watch the job at" in line).split()[-1]
        job.wait_for_line("joined")
        job.wait_for_line("joined")
        token = url.split("/")[3]
        for process in job.processes():
            assert token not in " ".join((*words_of(process), *environment_of(process).values()))
        with urllib.request.urlopen(f"{url}events", timeout=within(60)) as stream:
            states = (json.loads(line[6:]) for line in stream if line.startswith(b"data: "))
            assert next(one for one in states if one["state"] == "healthy")["size"] == 2
            job.signal(signal.SIGTERM)
            *_, last = states
    assert (last["state"], last["headline"], last["ended"]) == ("stopped", "by SIGTERM", True)


def test_a_running_job_gets_a_page_later(tmp_path):
    env = {"TFCOLLECTIVE_RUNTIME_DIR": str(tmp_path / "jobs")}
    program = JOIN + "join(); print('joined', me.job_id, flush=True); time.sleep(60)"
    with Run(("-np", "2", *python(program)), env) as job:
        name = job.wait_for_line("joined").split()[-1]
        words = [sys.executable, "-m", "tfcollective", "web", name]
        about = {"env": {**os.environ, **env}, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(words, **about) as page:
            url = next(line for line in page.stderr if "watch the job at" in line).split()[-1]
            with urllib.request.urlopen(f"{url}events", timeout=within(60)) as stream:
                states = (json.loads(line[6:]) for line in stream if line.startswith(b"data: "))
                assert next(one for one in states if one["state"] == "healthy")["job"] == name
            job.signal(signal.SIGTERM)
            assert "has ended, or does not answer" in page.communicate(timeout=within(90))[1]
    assert page.returncode == 0


def test_parallel_runs_do_not_see_each_other():
    program = python(JOIN + "c = join(); print(me.job_id); c.call(Leave(me.task))")
    with Run(("-np", "2", *program)) as first, Run(("-np", "2", *program)) as second:
        ids = [{line.split()[-1] for line in one.finish()[1].splitlines()} for one in (first, second)]
    assert [len(one) for one in ids] == [1, 1]
    assert ids[0] != ids[1]


def test_a_nested_run_is_its_own_job():
    inner = JOIN + "c = join(); print('inner', me.world_size); c.call(Leave(me.task))"
    words = f"[sys.executable, '-m', 'tfcollective', 'run', '-np', '2', 'python', '-c', {inner!r}]"
    command = f"import subprocess, sys; sys.exit(subprocess.call({words}))"
    code, out, _ = run("-np", "1", *python(command))
    assert code == 0
    assert out.count("inner 2") == 2


def test_a_reader_that_goes_away_does_not_hurt(tmp_path):
    done = tmp_path / "done"
    program = f"import time\nfor i in range(300): print('x' * 1000, flush=True)\nopen({str(done)!r}, 'w')"
    with Run(("-np", "1", *python(program))) as job:
        job.process.stdout.close()
        until(done.exists)
        assert job.process.wait(within(20)) == 0


def test_the_shell_finds_no_leftover_files(tmp_path):
    env = {"TFCOLLECTIVE_RUNTIME_DIR": str(tmp_path / "jobs")}
    assert run("-np", "2", *python(JOIN + "join()"), env=env)[0] == 0
    assert list((tmp_path / "jobs").iterdir()) == []
    assert (tmp_path / "jobs").stat().st_mode & 0o777 == 0o700


def test_files_named_like_modules_harm_no_agent(tmp_path):
    for name in ("select", "queue", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not meant for you')")
    # As the installed command does: the directory is not in the path of the launcher.
    program = "import sys; sys.path.remove(''); from tfcollective._cli import main; sys.exit(main())"
    words = [sys.executable, "-c", program, "run", "-np", "2", "echo", "fine"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=within(60), check=False)
    assert (done.returncode, done.stdout.count("fine")) == (0, 2), done.stderr


def test_tf_config_is_ours_or_none(tmp_path):
    """Under the launcher a rank is who the launcher says, whatever the environment says of another job."""
    script = tmp_path / "show.py"
    script.write_text(
        "import os, tfcollective\ntfcollective.init()\nprint(tfcollective.rank(), os.environ.get('TF_CONFIG'))\n"
    )
    outer = {
        "TF_CONFIG": json.dumps({"cluster": {"worker": ["h0:1", "h1:1"]}, "task": {"type": "worker", "index": 1}}),
        "TFCOLLECTIVE_IDENTITY": "tf_config",
    }
    code, out, err = run("-np", "1", "--no-prefix", "python", str(script), env=outer)
    assert (code, out) == (0, "0 None\n"), err
    code, out, err = run("-np", "1", "--no-prefix", "--emit-tf-config", "python", str(script), env=outer)
    assert code == 0, err
    rank, _, config = out.strip().partition(" ")
    assert rank == "0"
    assert json.loads(config)["task"] == {"type": "worker", "index": 0}


def test_init_raises_the_users_descriptor_limit():
    program = (
        "import resource, tfcollective as t; l = lambda: resource.getrlimit(7); print(l()[0]); t.init(); print(l())"
    )
    command = [sys.executable, "-m", "tfcollective", "run", "-np", "2", "--no-prefix", "python", "-c", program]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        timeout=within(60),
        check=True,
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = 1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20)
    assert sorted(done.stdout.split("\n")) == ["", f"({most}, {hard})", f"({most}, {hard})", "256", "256"]
