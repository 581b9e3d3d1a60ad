"""A spare process does what Python itself does with the arguments of a rank, and what its agent tells it."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from launching import until
from time_limits import within

from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import Timing
from tfcollective._base.verdict import Rules
from tfcollective._control.messages import Started
from tfcollective._launch.agent.protocol import AgentConfig, WorkerPlan
from tfcollective._launch.agent.spare import PythonCall, Spare
from tfcollective._launch.agent.supervisor import Supervisor
from tfcollective._testing.clock import ManualClock

SHOW = """
import json, os, pickle, sys
class Thing: pass
def function(): return Thing
pickle.dumps(Thing())
print(json.dumps([sys.argv, __name__, globals().get("__file__"), sys.path[0], os.environ.get("ONLY"), sys.stdin.read(),
    os.getcwd(), function() is sys.modules["__main__"].Thing]))
"""


@pytest.mark.parametrize(
    ("argv", "interpreter", "arguments"),
    [
        (("python", "train.py", "-m", "3"), ("python",), ("train.py", "-m", "3")),
        (
            ("/usr/bin/python3.11", "-u", "-m", "pkg.train", "a"),
            ("/usr/bin/python3.11", "-u"),
            ("-m", "pkg.train", "a"),
        ),
        (("python3", "-X", "dev", "-Wd", "-c", "pass"), ("python3", "-X", "dev", "-Wd"), ("-c", "pass")),
    ],
)
def test_commands_that_run_python(argv, interpreter, arguments):
    assert PythonCall.of(argv) == PythonCall(interpreter, arguments)


@pytest.mark.parametrize(
    "argv",
    [
        *[
            (),
            ("bash", "-c", "python x.py"),
            ("./train",),
            ("python",),
            ("python", "-"),
            ("python", "-m"),
            ("python", "train"),
            ("ipython", "x"),
        ],
        *[("python", "-um", "x"), ("python", "--version"), ("python", "-i", "x.py"), ("python", "-X")],
    ],
)
def test_others_have_no_spare(argv):
    assert PythonCall.of(argv) is None
    assert Spare.start(argv, (), {}, None) is None


@pytest.fixture
def programs(tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(SHOW)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "show.py").symlink_to(tmp_path / "show.py")
    (tmp_path / "raises.py").write_text("raise ValueError('the data is rotten')")
    (tmp_path / "exits.py").write_text("import sys; sys.exit(7)")
    return tmp_path


def ended(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out.decode(), err.decode()


def warm(argv, env, cwd):
    spare = Spare.start(argv, ("xml.dom", "there_is_no_such_module"), {**os.environ, "ONLY": "its own"}, cwd)
    process = spare.become(argv, env)
    process.stdin = None  # it has been used
    return ended(process)


def cold(argv, env, cwd):
    return ended(
        subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    )


@pytest.mark.parametrize(
    "arguments",
    [
        *[
            ("show.py", "-a", "b"),
            ("link/show.py",),
            ("-m", "package", "1"),
            ("-m", "show"),
        ],
        *[("-c", SHOW, "1"), ("-u", "show.py"), ("-sB", "show.py"), ("exits.py",)],
    ],
)
def test_it_does_what_python_does(programs, arguments):
    argv, env = (sys.executable, *arguments), {**os.environ, "ONLY": "the rank's"}
    code, out, err = warm(argv, env, str(programs))
    assert (code, out, err) == cold(argv, env, str(programs))
    assert arguments[0] == "exits.py" or "the rank's" in json.loads(out)


@pytest.mark.parametrize(
    ("script", "error"), [("raises.py", "ValueError: the data is rotten"), ("nowhere.py", "cannot open the script")]
)
def test_an_error_of_the_program_is_its_own(programs, script, error):
    code, out, err = warm((sys.executable, script), dict(os.environ), str(programs))
    assert (code, out) == (1, "")
    assert error in err


def test_it_ends_with_its_agent_s_pipe(tmp_path):
    spare = Spare.start((sys.executable, "x.py"), (), os.environ, str(tmp_path))
    spare._process.stdin.close()
    spare._process.stdin = None
    assert ended(spare._process) == (0, "", "")


class Reports:
    """Instead of a reporter."""

    def __init__(self):
        self.begun, self.ended = {}, []

    def report(self, request):
        if isinstance(request, Started):
            self.begun[str(request.task)] = request.pid
        else:
            self.ended.append(request.record)


@pytest.fixture
def job(tmp_path):
    config = AgentConfig("job", (worker(0),), str(tmp_path), rules=Rules(elastic=True))
    reports = Reports()
    supervisor = Supervisor(config, dict(os.environ), "node", reports, Timing(settle=0, terminate=0), ManualClock(1.0))
    supervisor.start()
    yield supervisor, reports
    supervisor.finish()
    supervisor.stop("request")
    until(lambda: supervisor.reap() or supervisor.done)


def worker(number):
    wait = (sys.executable, "-c", "import sys, time; print(sys.argv[1:], flush=True); time.sleep(600)")
    return WorkerPlan(TaskKey("worker", number), number, wait, {})


def prepare(supervisor):
    supervisor.prepare(worker(0), ("xml.dom",))


def test_a_spare_becomes_the_next_process(job):
    supervisor, reports = job
    prepare(supervisor)
    spare = supervisor._spare.pid
    prepare(supervisor)
    assert supervisor._spare.pid == spare
    supervisor.start_later(worker(1))
    supervisor.start_later(worker(2))
    assert reports.begun["worker:1"] == spare
    assert reports.begun["worker:2"] != spare


def test_one_that_has_ended_is_none(job):
    supervisor, reports = job
    prepare(supervisor)
    spare = supervisor._spare.pid
    os.kill(spare, 9)
    until(lambda: supervisor.reap() or supervisor._spare is None)
    supervisor.start_later(worker(1))
    assert reports.begun["worker:1"] != spare
    assert not reports.ended


def test_one_that_has_just_ended_is_none(job):
    supervisor, reports = job
    prepare(supervisor)
    os.kill(supervisor._spare.pid, 9)
    until(lambda: os.waitid(os.P_PID, supervisor._spare.pid, os.WEXITED | os.WNOWAIT) is not None)
    supervisor.start_later(worker(1))
    assert reports.begun.keys() == {"worker:0", "worker:1"}
    until(lambda: supervisor.reap() or len(supervisor._running) == 2)
    assert not reports.ended


@pytest.mark.parametrize("end", [lambda one: one.finish(), lambda one: one.stop("elsewhere")])
def test_no_spare_is_left_at_the_end(job, end):
    supervisor, _ = job
    prepare(supervisor)
    pid = supervisor._spare.pid
    end(supervisor)
    until(lambda: supervisor.reap() or not os.path.exists(f"/proc/{pid}"))
    prepare(supervisor)
    assert supervisor._spare is None


@pytest.mark.parametrize(("size", "taken"), [(100_000, True), (2_000_000, False)])
def test_no_agent_waits_for_a_stopped_spare(size, taken):
    """For its order: an environment may be larger than a pipe."""
    argv = (sys.executable, "train.py")
    spare = Spare.start(argv, [], dict(os.environ), None)
    os.kill(spare.pid, signal.SIGSTOP)
    became = []
    ordering = threading.Thread(target=lambda: became.append(spare.become(argv, {"LARGE": "x" * size})), daemon=True)
    ordering.start()
    ordering.join(within(20))
    spare.close()
    os.waitpid(spare.pid, 0)
    assert [process is not None for process in became] == [taken]
