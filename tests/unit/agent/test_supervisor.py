"""The supervisor's decisions about real, short processes; the test advances the clock."""

import ctypes
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from time_limits import within

from tfcollective._base.failures import ExitReason
from tfcollective._base.machine.control_groups import MemoryKills
from tfcollective._base.processes import become_subreaper, state_of
from tfcollective._base.settings import variable
from tfcollective._base.tasks import NO_RANK, TaskKey
from tfcollective._base.timing import Timing
from tfcollective._base.verdict import Rules, first_cause
from tfcollective._control.messages import Exited, Started
from tfcollective._launch.agent.policy import StopCause
from tfcollective._launch.agent.protocol import AgentConfig, KillCommand, WorkerPlan
from tfcollective._launch.agent.supervisor import Supervisor
from tfcollective._testing.clock import ManualClock

GRACE_S = 30.0
LIMITS = Timing(settle=1.0, terminate=1.0, interrupt=1.0, grace=GRACE_S)


class Reports:
    """Instead of a reporter."""

    def __init__(self):
        self.begun, self.ended, self.notices = [], [], []

    def report(self, request):
        if isinstance(request, Started):
            assert request.host
            self.begun.append((request.task, request.node, request.pid))
        elif isinstance(request, Exited):
            self.ended.append(request.record)
        else:
            self.notices.append(([str(task) for task in request.tasks], request.why))


def supervise(tmp_path, clock, *programs, killed_for_memory=lambda: None, **options):
    workers = tuple(
        WorkerPlan(TaskKey.parse(f"worker:{rank}"), rank, (sys.executable, "-c", program), {})
        for rank, program in enumerate(programs)
    )
    config = AgentConfig("job", workers, str(tmp_path), log_dir=str(tmp_path / "logs"), **options)
    reports = Reports()
    supervisor = Supervisor(config, dict(os.environ), "node", reports, LIMITS, clock, killed_for_memory)
    supervisor.start()
    return supervisor, reports


def reap_until(supervisor, condition):
    deadline = time.monotonic() + within(20)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # a real process has to get there; the agent itself is woken by SIGCHLD
        supervisor.reap()


@pytest.fixture
def clock():
    return ManualClock(100.0)


def test_success(tmp_path, clock):
    supervisor, reports = supervise(tmp_path, clock, "print('out')", "import sys; sys.stderr.write('err')")
    reap_until(supervisor, lambda: supervisor.done)
    supervisor.drain(within(20))
    assert [
        (record.rank, record.exit_code, record.failed) for record in sorted(reports.ended, key=lambda r: r.rank)
    ] == [
        (0, 0, False),
        (1, 0, False),
    ]
    assert supervisor.wake_at is None
    assert (tmp_path / "logs/rank.0/stdout").read_bytes() == b"out\n"
    assert (tmp_path / "logs/rank.1/stderr").read_bytes() == b"err"
    assert {str(task) for task, _, _ in reports.begun} == {"worker:0", "worker:1"}


def test_after_a_failure_signals_follow_a_grace(tmp_path, clock):
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    )
    supervisor, reports = supervise(tmp_path, clock, "raise SystemExit(3)", stubborn)
    reap_until(supervisor, lambda: (tmp_path / "logs/rank.1/stdout").stat().st_size)
    reap_until(supervisor, lambda: reports.ended)
    assert reports.ended[0].exit_code == 3
    assert supervisor.wake_at == 101.0
    supervisor.tick()
    assert not reports.ended[1:]
    clock.advance(1.0)
    supervisor.tick()
    assert supervisor.wake_at == 102.0
    clock.advance(1.0)
    supervisor.tick()
    reap_until(supervisor, lambda: supervisor.done)
    assert (reports.ended[1].signal, reports.ended[1].stopped) == (signal.SIGKILL, True)
    assert not reports.ended[0].stopped


def test_a_second_request_kills_at_once(tmp_path, clock):
    deaf = (
        "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\nprint(1, flush=True); time.sleep(60)"
    )
    supervisor, reports = supervise(tmp_path, clock, deaf)
    reap_until(supervisor, lambda: (tmp_path / "logs/rank.0/stdout").stat().st_size)
    supervisor.stop(StopCause.REQUEST, signal.SIGINT)
    assert supervisor.wake_at == 101.0
    supervisor.stop(StopCause.REQUEST, signal.SIGINT)
    reap_until(supervisor, lambda: supervisor.done)
    assert reports.ended[0].signal == signal.SIGKILL


def test_a_rank_has_the_grace_to_checkpoint(tmp_path, clock):
    saves = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saving', flush=True), time.sleep(0.5), sys.exit(7)))\n"
        "print(1, flush=True)\ntime.sleep(60)"
    )
    supervisor, reports = supervise(tmp_path, clock, saves, "import time; print(1, flush=True); time.sleep(60)")
    reap_until(supervisor, lambda: all((tmp_path / f"logs/rank.{rank}/stdout").stat().st_size for rank in (0, 1)))
    supervisor.stop(StopCause.REQUEST, signal.SIGTERM)
    reap_until(supervisor, lambda: reports.ended)
    assert (reports.ended[0].rank, reports.ended[0].signal) == (1, signal.SIGTERM)  # its failure ends no rank sooner
    for cause in (StopCause.ELSEWHERE, StopCause.REQUEST):
        supervisor.stop(cause, signal.SIGTERM)  # neither does an order that comes twice
    assert supervisor.wake_at == 100.0 + GRACE_S
    clock.advance(GRACE_S - 1.0)
    supervisor.tick()
    reap_until(supervisor, lambda: supervisor.done)
    assert (reports.ended[1].rank, reports.ended[1].exit_code) == (0, 7)


def test_a_rank_that_raised_first_has_failed(tmp_path, clock):
    """Its process takes longer to end than the others may."""
    raises = (
        "import os, signal, time\nfrom tfcollective._base.failures import write_exception\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "write_exception(os.environ['TFCOLLECTIVE_FAILURE_FILE'], ValueError('first'), now=99.0)\n"
        "print(1, flush=True); time.sleep(60)"
    )
    supervisor, reports = supervise(tmp_path, clock, raises, "raise SystemExit(3)")
    reap_until(supervisor, lambda: (tmp_path / "logs/rank.0/stdout").stat().st_size and reports.ended)
    clock.advance(LIMITS.settle)
    supervisor.tick()
    clock.advance(LIMITS.terminate)
    supervisor.tick()
    reap_until(supervisor, lambda: supervisor.done)
    late = next(record for record in reports.ended if record.rank == 0)
    assert (late.signal, late.stopped, late.status) == (signal.SIGKILL, False, 1)
    assert first_cause(reports.ended) is late


RAISES = """
import os
from tfcollective._base.failures import write_exception
path = os.environ['TFCOLLECTIVE_FAILURE_FILE']
write_exception(path, ValueError('first'), now=99.0, final={final})
if {joins_again}: os.unlink(path)
"""


@pytest.mark.parametrize(
    ("final", "joins_again", "failed"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_command_that_hides_an_exception_fails(tmp_path, clock, final, joins_again, failed):
    """As ``python train.py | tee log`` does; not one whose program has caught the error or was started again."""
    supervisor, reports = supervise(tmp_path, clock, RAISES.format(final=final, joins_again=joins_again))
    reap_until(supervisor, lambda: supervisor.done)
    (record,) = reports.ended
    assert (record.failed, record.raised, record.status) == (failed, failed, int(failed))
    assert (record.exception is not None) == failed
    if failed:
        assert record.how == "exited with code 0 although an exception had ended its program"


GOES_ON = """
import os, subprocess, sys, time
from tfcollective._base.failures import forget_member, note_member
path = os.environ['TFCOLLECTIVE_FAILURE_FILE']
note_member(path)
if len(sys.argv) > 1: forget_member(path)
print(1, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("left", [False, True])
def test_a_command_ending_before_its_program_fails(tmp_path, clock, left):
    """As a script that starts it with ``&`` does; not one whose program has left the job, and only cleans up."""
    wrapper = f"""
import subprocess, sys
program = subprocess.Popen([sys.executable, '-c', {GOES_ON!r}] + {["left"] * left}, stdout=subprocess.PIPE)
program.stdout.readline()
print(program.pid, flush=True)
"""
    supervisor, reports = supervise(tmp_path, clock, wrapper)
    reap_until(supervisor, lambda: supervisor.done)
    (record,) = reports.ended
    program = int((tmp_path / "logs/rank.0/stdout").read_text())
    os.kill(program, signal.SIGKILL)
    assert record.failed == (not left)
    if not left:
        went_on = f"while its program, process {program}, kept running"
        assert record.how == f"exited with code 0 {went_on}: a command must wait for it"


HANDLES = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print(1, flush=True)
time.sleep(60)
"""
WRAPPED = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {HANDLES!r}]).returncode)"
WITHOUT = "import time; print(1, flush=True); time.sleep(60)"


def test_a_program_signal_ends_no_other_process(tmp_path, clock):
    """Without a handler it would end a wrapper, and a rank that has not come so far or does not expect it."""
    supervisor, reports = supervise(tmp_path, clock, HANDLES, WRAPPED, WITHOUT, rules=Rules(elastic=True))
    logs = [tmp_path / f"logs/rank.{rank}/stdout" for rank in range(3)]
    reap_until(supervisor, lambda: all(log.stat().st_size for log in logs))
    supervisor.pass_on(signal.SIGUSR1)
    reap_until(supervisor, lambda: len(reports.ended) == 2)
    assert {(record.task, record.exit_code) for record in reports.ended} == {("worker:0", 7), ("worker:1", 7)}
    supervisor.stop(StopCause.REQUEST, signal.SIGKILL)
    reap_until(supervisor, lambda: supervisor.done)
    assert reports.ended[2].signal == signal.SIGKILL


KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(("counts", "hinted"), [((3, 4), True), ((3, 3), False), ((None, 4), False)])
def test_a_possible_kill_for_memory_is_hinted(tmp_path, clock, counts, hinted):
    kills = [None if count is None else MemoryKills("host", count) for count in counts]
    supervisor, reports = supervise(tmp_path, clock, KILLED, killed_for_memory=lambda: kills.pop(0))
    reap_until(supervisor, lambda: supervisor.done)
    assert reports.ended[0].signal == signal.SIGKILL
    assert reports.ended[0].hint.startswith("the kernel has killed a process of this host for lack of memory") == hinted


SILENT = KillCommand("worker:0", "sent no heartbeat", if_stopped=True)


def test_a_silent_running_process_is_not_killed(tmp_path, clock, caplog):
    supervisor, reports = supervise(tmp_path, clock, "print(1, flush=True)\nwhile True: pass")
    reap_until(supervisor, lambda: (tmp_path / "logs/rank.0/stdout").stat().st_size)
    supervisor.kill(SILENT)
    assert re.search(r"rank 0 \(worker:0, pid \d+\) sent no heartbeat, but .* not stopped \(\w+, \d+ s", caplog.text)
    supervisor.kill(KillCommand("worker:0", "had to end", reason=ExitReason.DISMISSED))
    reap_until(supervisor, lambda: supervisor.done)
    assert (reports.ended[0].note, reports.ended[0].reason) == ("had to end", ExitReason.DISMISSED)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Horovod has been shut down. This was caused by an exception on one of the ranks or", ExitReason.PEER),
        ("no data", ExitReason.ENDED),
    ],
)
def test_a_lost_horovod_peer_is_a_consequence(tmp_path, clock, said, reason):
    supervisor, reports = supervise(tmp_path, clock, f"import sys; sys.exit('UnknownError: {said}')")
    reap_until(supervisor, lambda: supervisor.done)
    assert (reports.ended[0].exit_code, reports.ended[0].reason) == (1, reason)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_silent_process_that_is_stopped_is_killed(tmp_path, clock, wrapped):
    program = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    if wrapped:  # as by a script that starts Python
        program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"
    supervisor, reports = supervise(tmp_path, clock, program)
    reap_until(supervisor, lambda: state_of(reports.begun[0][2]).stopped)
    supervisor.kill(SILENT)
    reap_until(supervisor, lambda: supervisor.done)
    assert reports.ended[0].signal == signal.SIGKILL
    assert reports.ended[0].note == "sent no heartbeat while it was stopped, and was killed"


def test_a_command_that_cannot_run_is_a_failure(tmp_path, clock):
    config = AgentConfig("job", (WorkerPlan(TaskKey.parse("worker:0"), 0, ("/no/such/program",), {}),), str(tmp_path))
    reports = Reports()
    supervisor = Supervisor(config, {}, "node", reports, clock=clock)
    supervisor.start()
    assert supervisor.done
    assert reports.ended[0].exit_code == 127
    assert "cannot run '/no/such/program'" in reports.ended[0].stderr_tail[0]


def test_a_script_without_interpreter_gets_advice(tmp_path, clock):
    script = tmp_path / "train"
    script.write_text("echo 1\n")
    script.chmod(0o755)
    config = AgentConfig("job", (WorkerPlan(TaskKey.parse("worker:0"), 0, (str(script),), {}),), str(tmp_path))
    reports = Reports()
    Supervisor(config, {}, "node", reports, clock=clock).start()
    assert reports.ended[0].exit_code == 126
    assert "a first line that names its interpreter, such as #!/bin/sh" in reports.ended[0].stderr_tail[0]


def test_nothing_starts_without_the_jobs_directory(tmp_path, clock):
    """A process would find no key, and could leave no record of that; neither could another one in its place."""
    directory = tmp_path / "job"
    directory.mkdir()
    supervisor, reports = supervise(directory, clock, "import time; time.sleep(60)", rules=Rules(elastic=True))
    shutil.rmtree(directory)
    supervisor.start_later(WorkerPlan(TaskKey.parse("worker:1"), 1, (sys.executable, "-c", "pass"), {}))
    (record,) = reports.ended
    assert (record.task, record.pid, record.raised) == ("worker:1", 0, True)
    assert f"{directory}, is gone" in record.exception.message
    assert "TFCOLLECTIVE_RUNTIME_DIR" in record.exception.message
    supervisor.stop(StopCause.FAILURE)
    clock.advance(LIMITS.settle + LIMITS.terminate)
    supervisor.tick()
    reap_until(supervisor, lambda: supervisor.done)


def test_the_records_hold_the_last_lines_of_stderr(tmp_path, clock):
    program = "import os, sys; [print(i, file=sys.stderr) for i in range(50)]; os.abort()"
    supervisor, reports = supervise(tmp_path, clock, program)
    reap_until(supervisor, lambda: supervisor.done)
    assert reports.ended[0].signal == signal.SIGABRT
    assert reports.ended[0].stderr_tail[-1] == "49"


def test_output_that_cannot_be_kept_fails_clearly(tmp_path, clock):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank.1").write_text("in the way")
    supervisor, reports = supervise(tmp_path, clock, "import time; time.sleep(60)", "print(1)")
    assert [record.rank for record in reports.ended] == [1]
    assert "File exists" in reports.ended[0].stderr_tail[0]
    assert "logs/rank.1" in reports.ended[0].stderr_tail[0]
    supervisor.stop(StopCause.REQUEST, signal.SIGKILL)
    reap_until(supervisor, lambda: supervisor.done)


def test_a_directory_that_does_not_exist_is_named(tmp_path, clock):
    worker = WorkerPlan(TaskKey.parse("worker:0"), 0, ("true",), {})
    config = AgentConfig("job", (worker,), str(tmp_path), cwd="/no/such/place")
    reports = Reports()
    Supervisor(config, {}, "node", reports, clock=clock).start()
    assert "(/no/such/place)" in reports.ended[0].stderr_tail[0]


def test_an_auxiliary_task_that_fails_stops_no_rank(tmp_path, clock):
    workers = (
        WorkerPlan(TaskKey.parse("worker:0"), 0, (sys.executable, "-c", "import time; time.sleep(60)"), {}),
        WorkerPlan(TaskKey.parse("evaluator:0"), -1, (sys.executable, "-c", "raise SystemExit(3)"), {}),
        WorkerPlan(TaskKey.parse("tensorboard:0"), -1, ("/no/such/program",), {}),
    )
    config = AgentConfig("job", workers, str(tmp_path), log_dir=str(tmp_path / "logs"))
    reports = Reports()
    supervisor = Supervisor(config, dict(os.environ), "node", reports, LIMITS, clock)
    supervisor.start()
    reap_until(supervisor, lambda: len(reports.ended) == 2)
    assert {(record.task, record.exit_code) for record in reports.ended} == {("evaluator:0", 3), ("tensorboard:0", 127)}
    assert supervisor.wake_at is None
    assert (tmp_path / "logs" / "evaluator" / "stdout").exists()
    supervisor.stop(StopCause.REQUEST, signal.SIGKILL)
    reap_until(supervisor, lambda: supervisor.done)


def test_the_output_of_an_earlier_run_is_kept(tmp_path, clock):
    for number in range(3):
        worker = WorkerPlan(TaskKey.parse("worker:0"), 0, (sys.executable, "-c", f"print({number})"), {})
        config = AgentConfig("job", (worker,), str(tmp_path), log_dir=str(tmp_path / "logs"))
        supervisor = Supervisor(config, dict(os.environ), "node", Reports(), LIMITS, clock)
        supervisor.start()
        reap_until(supervisor, lambda supervisor=supervisor: supervisor.done)
        supervisor.drain(within(20))
    files = sorted((tmp_path / "logs" / "rank.0").glob("stdout*"))
    assert [path.name for path in files] == ["stdout", "stdout.1", "stdout.2"]
    assert [path.read_text() for path in files] == ["2\n", "0\n", "1\n"]


def elastic(tmp_path, clock):
    config = AgentConfig("job", (), str(tmp_path), rules=Rules(elastic=True), slots=2)
    reports = Reports()
    return Supervisor(config, dict(os.environ), "node", reports, LIMITS, clock), reports


def later(index, program):
    return WorkerPlan(TaskKey("worker", index), index, (sys.executable, "-c", program), {})


def test_an_elastic_agent_may_have_no_process(tmp_path, clock):
    supervisor, reports = elastic(tmp_path, clock)
    supervisor.start()
    assert not supervisor.done
    supervisor.start_later(later(0, ""))
    supervisor.start_later(later(0, ""))  # it runs already
    reap_until(supervisor, lambda: reports.ended)
    assert (len(reports.begun), reports.ended[0].exit_code, supervisor.done) == (1, 0, False)
    supervisor.finish()
    assert supervisor.done


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"


def test_a_process_leaving_alone_has_the_grace(tmp_path, clock):
    gate = tmp_path / "gate"
    waits = f"import os, time; print(1, flush=True)\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    supervisor, reports = supervise(
        tmp_path, clock, waits, f"{waits}\nraise ValueError", DEAF, rules=Rules(elastic=True)
    )
    logs = [tmp_path / f"logs/rank.{rank}/stdout" for rank in range(3)]
    reap_until(supervisor, lambda: all(log.stat().st_size for log in logs))
    for index in (1, 2, 2, 3):
        supervisor.ask_to_leave(TaskKey("worker", index), "its slot is gone")
    assert reports.notices == [(["worker:1"], "its slot is gone"), (["worker:2"], "its slot is gone")]
    assert supervisor.wake_at == 100.0 + GRACE_S - LIMITS.terminate
    assert not supervisor.leaving
    clock.advance(GRACE_S)
    gate.touch()
    reap_until(supervisor, lambda: len(reports.ended) == 2)
    supervisor.tick()
    reap_until(supervisor, lambda: len(reports.ended) == 3)
    ends = {record.task: record for record in reports.ended}
    assert [ends[f"worker:{index}"].exit_code for index in range(2)] == [0, 1]
    assert [ends[f"worker:{index}"].leaving for index in range(3)] == [False, True, True]
    last = ends["worker:2"]
    assert (last.signal, last.stopped, last.raised) == (signal.SIGKILL, False, False)
    assert last.note == "had not left, as it was asked to, within 30 s (--grace)"
    supervisor.start_later(later(3, ""))  # its node stays
    reap_until(supervisor, lambda: len(reports.ended) == 4)
    assert reports.ended[3].exit_code == 0


def test_ranks_of_a_preempted_node_have_grace(tmp_path, clock):
    gate = tmp_path / "gate"
    leaves = f"import os, time; print(1, flush=True)\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    raises = f"{leaves}\nraise ValueError"
    supervisor, reports = supervise(tmp_path, clock, leaves, raises, DEAF, rules=Rules(elastic=True))
    logs = [tmp_path / f"logs/rank.{rank}/stdout" for rank in range(3)]
    reap_until(supervisor, lambda: all(log.stat().st_size for log in logs))
    for _ in range(2):  # a platform may say it again
        supervisor.leave("its agent got SIGTERM")
    assert reports.notices == [(["worker:0", "worker:1", "worker:2"], "its agent got SIGTERM")]
    assert supervisor.wake_at == 100.0 + GRACE_S - LIMITS.terminate
    gate.touch()
    reap_until(supervisor, lambda: len(reports.ended) == 2)
    supervisor.start_later(later(3, ""))
    assert (reports.ended[2].task, reports.ended[2].reason) == ("worker:3", ExitReason.NOT_STARTED)
    clock.advance(GRACE_S)
    supervisor.tick()
    reap_until(supervisor, lambda: supervisor.done)
    ends = {record.task: record for record in reports.ended}
    assert [ends[f"worker:{index}"].exit_code for index in range(2)] == [0, 1]
    last = ends["worker:2"]
    assert (last.signal, last.stopped) == (signal.SIGKILL, False)
    assert last.note == "had not left its preempted node within 30 s (--grace)"
    assert all(record.leaving and not record.raised for record in reports.ended)


def test_a_users_file_preempts_a_node(tmp_path, clock):
    notice = tmp_path / "notice"
    waits = f"import os, time\nwhile not os.path.exists({str(notice)!r}): time.sleep(0.01)"
    supervisor, reports = supervise(tmp_path, clock, waits, rules=Rules(elastic=True), preemption_file=str(notice))
    supervisor.tick()
    assert supervisor.wake_at == 100.0 + LIMITS.preemption_look
    assert not supervisor.leaving
    notice.touch()
    clock.advance(LIMITS.preemption_look)
    supervisor.tick()
    reap_until(supervisor, lambda: supervisor.done)
    assert len(reports.notices) == 1


def test_a_users_command_preempts_a_node(tmp_path, clock):
    command = (sys.executable, "-c", "pass")
    supervisor, reports = supervise(tmp_path, clock, DEAF, rules=Rules(elastic=True), preemption_command=command)
    supervisor.tick()
    reap_until(supervisor, lambda: supervisor.leaving)
    assert reports.notices[0][1].startswith("the preemption command said so: ")
    supervisor.stop(StopCause.REQUEST, signal.SIGKILL)
    reap_until(supervisor, lambda: supervisor.done)


def test_a_process_without_resources_is_reported(tmp_path, clock):
    supervisor, reports = elastic(tmp_path, clock)
    supervisor.cannot_start(later(0, ""), "too few GPUs")
    assert (reports.ended[0].exit_code, reports.ended[0].stderr_tail) == (126, ("too few GPUs",))


def test_an_auxiliary_task_keeps_no_preempted_node(tmp_path, clock):
    supervisor, reports = supervise(tmp_path, clock, "import time; time.sleep(60)", rules=Rules(elastic=True))
    for worker in supervisor._running.values():
        worker.config = replace(worker.config, rank=NO_RANK)
    supervisor.leave("its agent got SIGTERM")
    clock.advance(LIMITS.settle)
    supervisor.tick()
    reap_until(supervisor, lambda: supervisor.done)
    assert reports.notices == [([], "its agent got SIGTERM")]


# ---- what a lost rank leaves -----------------------------------------------------------------------------------------

# Two children: one in its session, one in its own that SIGTERM does not end. Then it waits, or is killed.
WITH_CHILDREN = """
import os, subprocess, sys, time
from pathlib import Path
deaf = "trap '' TERM; while :; do sleep 1; done"
children = [subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sh", "-c", deaf], start_new_session=True)]
Path({file!r} + ".new").write_text(" ".join(str(one.pid) for one in children))
os.rename({file!r} + ".new", {file!r})
os.kill(os.getpid(), 9) if {dies} else time.sleep(600)
"""


@pytest.fixture
def subreaper():
    """What an agent is for the time of a test."""
    become_subreaper()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_only_children_of_a_lost_rank_end(tmp_path, clock, subreaper):
    files = [str(tmp_path / name) for name in ("stays", "dies")]
    programs = [WITH_CHILDREN.format(file=file, dies=file.endswith("dies")) for file in files]
    workers = tuple(
        WorkerPlan(TaskKey("worker", rank), rank, (sys.executable, "-c", program), {variable("task"): f"worker:{rank}"})
        for rank, program in enumerate(programs)
    )
    reports = Reports()
    config = AgentConfig("job", workers, str(tmp_path), rules=Rules(elastic=True))
    supervisor = Supervisor(config, dict(os.environ), "node", reports, LIMITS, clock)
    supervisor.start()
    reap_until(supervisor, lambda: reports.ended and all(Path(file).exists() for file in files))
    stays, dies = ([int(pid) for pid in Path(file).read_text().split()] for file in files)
    assert supervisor.wake_at <= clock.monotonic() + LIMITS.sweep
    clock.advance(LIMITS.sweep)
    supervisor.tick()
    reap_until(supervisor, lambda: not lives(dies[0]))
    clock.advance(LIMITS.sweep)
    supervisor.tick()
    reap_until(supervisor, lambda: not any(map(lives, dies)))
    assert all(map(lives, stays))
    supervisor.stop(StopCause.REQUEST, signal.SIGKILL)
    reap_until(supervisor, lambda: supervisor.done)
    os.kill(stays[1], signal.SIGKILL)  # it has left the session, and its agent would end it
