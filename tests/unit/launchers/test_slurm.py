"""What SLURM's variables and commands say, the batch script, and the end of a job; without SLURM."""

import io
import json
import signal
import subprocess
from dataclasses import replace

import pytest
from launching import until
from tfcollective_launchers.slurm import control, submission
from tfcollective_launchers.slurm.allocation import Allocation, environment_of_srun, task_counts
from tfcollective_launchers.slurm.call_folder import leave, left, stage, staged
from tfcollective_launchers.slurm.control import JobState, SlurmError, UnknownJobError, fields_of
from tfcollective_launchers.slurm.launcher import SlurmLauncher, placed
from tfcollective_launchers.slurm.options import SlurmOptions
from tfcollective_launchers.slurm.provider import AllocationHosts, SlurmProvider, srun_command
from tfcollective_launchers.slurm.script import batch_script
from tfcollective_launchers.slurm.submission import Followed, Tail, ended_by, outcome_of

from tfcollective._base.errors import ConfigError, LaunchError
from tfcollective._cli.run import run
from tfcollective._cli.run_options import job_spec
from tfcollective._control.snapshot import JobSnapshot
from tfcollective._launch.launcher import JobOutcome, StartFailure, find_manager
from tfcollective._launch.nodes.provider import NodeFacts, NodeKind, NodeSettings
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.job_file import job_text, read_job
from tfcollective._launch.plan.spec import FunctionCall, JobSpec
from tfcollective._launch.report.report import exit_code, render
from tfcollective._launch.restarts import run_job
from tfcollective._testing.clock import ManualClock

ALLOCATED = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "gpu[07-08],big", "SLURM_TASKS_PER_NODE": "2(x2),1"}
HOSTS = (Host("gpu07", 2), Host("gpu08", 2), Host("big", 1))
NODE = (
    "NodeName=gpu07 Arch=x86_64 CoresPerSocket=1 NodeAddr=10.0.0.7 NodeHostName=gpu07 State=DOWN*+DRAIN "
    "Partitions=all Reason=Not responding [slurm@2026-11-25T21:18:53]"
)


@pytest.fixture
def outside(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def inside(monkeypatch):
    for name, value in ALLOCATED.items():
        monkeypatch.setenv(name, value)


def parsed(*arguments):
    """(launcher, job) of a command line."""
    context = run.make_context("run", ["--launcher", "slurm", *arguments])
    options = dict(context.params)
    return job_spec(options, tuple(options.pop("command")))


def test_the_nodes_of_an_allocation():
    assert Allocation.of(ALLOCATED) == Allocation("17", HOSTS)
    assert Allocation.of({**ALLOCATED, "SLURM_RESTART_COUNT": "2"}).restarts == 2
    assert Allocation.of({}) is None
    assert Allocation.of({"SLURM_JOB_ID": "17"}) is None
    assert task_counts("2(x3),1") == [2, 2, 2, 1]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"SLURM_TASKS_PER_NODE": "2"}, "SLURM_TASKS_PER_NODE=2 does not fit the 3 nodes"),
        ({"SLURM_TASKS_PER_NODE": "two"}, "expected numbers such as"),
        ({"SLURM_JOB_NODELIST": "gpu[07-"}, "SLURM_JOB_NODELIST: 'gpu"),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}, "srun has started this launcher 8 times"),
        ({"SLURM_RESTART_COUNT": "x"}, "SLURM_RESTART_COUNT: expected a number"),
    ],
)
def test_variables_that_cannot_be_used(more, said):
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
        Allocation.of({**ALLOCATED, **more})


def test_srun_gets_none_of_the_jobs_options():
    environ = {**ALLOCATED, "SLURM_CPUS_PER_TASK": "1", "SRUN_EXACT": "1", "SLURM_CONF": "/c", "PATH": "/bin"}
    assert environment_of_srun(environ) == {"SLURM_JOB_ID": "17", "SLURM_CONF": "/c", "PATH": "/bin"}


def test_the_step_of_an_agent():
    words = srun_command("gpu07", SlurmOptions(python="/py", srun_args=("--cpu-bind=none",)), overlap=True)
    assert words[0] == "srun"
    assert {"--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu07", "--export=ALL"} < set(words)
    assert words.index("--cpu-bind=none") < words.index("/py")
    assert "--overlap" not in srun_command("gpu07", SlurmOptions(), overlap=False)


def test_inside_an_allocation_a_job_has_its_tasks(inside):
    _, spec = parsed("true")
    assert (spec.num_proc, spec.hosts) == (5, HOSTS)
    plan = SlurmLauncher().plan(spec)
    assert [worker.host for worker in plan.workers] == ["gpu07", "gpu07", "gpu08", "gpu08", "big"]
    assert [one.host for one in SlurmLauncher().plan(parsed("-np", "3", "true")[1]).workers][-1] == "gpu08"
    assert not SlurmLauncher().delegates
    with pytest.raises(ConfigError, match="9 processes do not fit into the 5 slots"):
        parsed("-np", "9", "true")
    with pytest.raises(ConfigError, match="elsewhere is not among the nodes of job 17: gpu07, gpu08, big"):
        SlurmLauncher().plan(parsed("-H", "elsewhere:2", "true")[1])


def test_outside_allocations_the_rank_count_is_required(outside):
    said = (
        "the number of ranks is missing: give -np N or --task-spec .*, or run this in an allocation of salloc or sbatch"
    )
    with pytest.raises(ConfigError, match=said):
        parsed("true")
    assert SlurmLauncher().delegates


COMMAND_LINES = [
    ("-np", "2"),
    ("-np", "4", "--min-np", "2", "--max-np", "8", "--elastic-timeout", "30", "--no-warm-spares"),
    ("-np", "2", "--env", "A=b c", "--env", "B=", "--grace", "45", "--log-dir", "/l", "--no-prefix", "--cwd", "/w"),
    ("-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "1", "2", "--reset-limit", "0", "--blacklist", "a,b"),
    ("--task-spec", "chief", "--task-spec", "worker:instances=2,nb_proc_per_worker=3,memory=1 GiB,label=gpu"),
    ("-np", "2", "--min-np", "1", "--preemption-command", "test -e '/a b'", "--preemption-file", "/stop"),
    ("-np", "2", "--max-restarts", "3", "--requeue", "--srun-args", "--cpu-bind=none --comment='a b'"),
    ("-np", "2", "--stall-warning", "0", "--op-timeout", "12.5", "--transport", "tcp", "--log-level", "info"),
    ("-np", "2", "--horovod-compat", "--timeline", "/t", "-prefix-timestamp", "--network-interface", "ib0"),
    ("-np", "2", "--start-timeout", "9", "--host-timeout", "20", "--evaluator-grace", "5"),
]


def test_a_growing_job_begins_on_all_slots():
    grows = JobSpec(("x",), 2, min_proc=1, max_proc=4)
    for spec, count in ((grows, 4), (replace(grows, max_proc=9), 5), (JobSpec(("x",), 2, min_proc=1), 2)):
        job = placed(spec, Allocation("17", HOSTS))
        assert (job.num_proc, job.hosts) == (count, HOSTS)


@pytest.mark.parametrize("arguments", COMMAND_LINES)
def test_the_script_holds_the_job(outside, arguments):
    _, spec = parsed(*arguments, "python", "train.py", "--rate", "0.1")
    script = batch_script(spec, SlurmOptions.of(spec.platform))
    assert f" -m tfcollective job --launcher slurm <<'JOB'\n{job_text(spec)}\nJOB\n" in script
    read = read_job(job_text(spec))
    assert replace(read, platform={}) == replace(spec, platform={})
    assert SlurmOptions.of(read.platform) == SlurmOptions.of(spec.platform)


def test_a_batch_script(outside):
    _, spec = parsed(
        *("-np", "8", "--min-np", "4", "--nodes", "2", "--partition", "gpu", "--time", "12:00:00", "--gres", "gpu:4"),
        *("--requeue", "--grace", "60", "--job-name", "my run", "--sbatch-args", "--comment='a b'", "train"),
    )
    script = SlurmLauncher().preview(spec)
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    for line in (
        "--ntasks=8 --nodes=2 --partition=gpu --time=12:00:00 --gres=gpu:4 --signal=B:TERM@90 --requeue --no-kill "
        "--open-mode=append"
    ).split():
        assert f"#SBATCH {line}" in lines
    assert "#SBATCH --job-name='my run'" in lines
    assert "#SBATCH '--comment=a b'" in lines
    assert lines[lines.index("# 8 ranks of: train") + 1].startswith("exec ")
    assert json.loads("\n".join(lines[lines.index("{") : lines.index("JOB")]))["command"] == ["train"]


@pytest.mark.parametrize(
    ("platform", "said"),
    [
        ({"partition": "a\n#SBATCH --wrap=x"}, r"partition \(--queue\): expected a text of one line"),
        ({"sbatch_args": ["--x\n"]}, "sbatch_args .*: expected a text of one line"),
    ],
)
def test_options_that_cannot_be_used(platform, said):
    with pytest.raises(ConfigError, match=said):
        SlurmOptions.of(platform)


def test_jobs_that_are_refused_before_anything_is_submitted(outside):
    launcher = SlurmLauncher()
    with pytest.raises(ConfigError, match="SLURM chooses the nodes"):
        launcher.run(JobSpec(("true",), 1, hosts=(Host("a"),)))
    with pytest.raises(ConfigError, match="detach: the results of a function"):
        launcher.run(JobSpec(("true",), 1, call=FunctionCall(b"", ()), platform={"detach": True}))
    with pytest.raises(ConfigError, match="inside an allocation only"):
        launcher.plan(JobSpec(("true",), 1))


def test_what_scontrol_says_of_a_node(monkeypatch):
    monkeypatch.setattr(control, "ask", lambda *words, seconds=0: f"{NODE}\n")
    node = control.node_states(["gpu07"])["gpu07"]
    assert (node.address, node.drains) == ("10.0.0.7", True)
    assert str(node) == "gpu07 is DOWN*+DRAIN: Not responding [slurm@2026-11-25T21:18:53]"


def state(name, **more):
    return JobState({"JobState": name, "NodeList": "(null)", "Restarts": "0", **more})


def test_what_scontrol_says_of_a_job():
    found = JobState(fields_of("JobId=7 JobName=a b JobState=FAILED Reason=None NodeList=n[1-2] ExitCode=0:9 Power="))
    assert (found["JobName"], found.state, found.reason, found.nodes) == ("a b", "FAILED", "", ("n1", "n2"))
    assert found.exit_code == (0, 9)


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        (state("COMPLETED"), 0, ""),
        (state("FAILED", ExitCode="5:0"), 5, ""),
        (state("FAILED", ExitCode="0:9"), 137, ""),
        (state("TIMEOUT", Reason="TimeLimit"), 75, "job 7 has ended: it has reached its time limit (TimeLimit)"),
        (state("NODE_FAIL"), 75, "job 7 has ended: it has lost a node"),
        (state("DEADLINE"), 75, "job 7 has ended: SLURM says DEADLINE"),
    ],
)
def test_how_a_job_of_slurms_has_ended(job, code, said):
    outcome = outcome_of(job, "7")
    assert (exit_code(outcome), render(outcome)) == (code, said)


def follow(monkeypatch, *answers, timeout=None):
    """What becomes of a job that is in one of these states at each look, the last one from then on."""
    left_over, cancelled = list(answers), []
    monkeypatch.setattr(control, "cancel", lambda job: (cancelled.append(job), left_over.append(state("CANCELLED"))))

    def look(job_id):
        answer = left_over.pop(0) if len(left_over) > 1 else left_over[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Followed("7", timeout, ManualClock(), look).to_its_end([]), cancelled


def test_a_controller_that_is_away_is_waited_for(monkeypatch, caplog):
    away = SlurmError("Unable to contact slurm controller")
    outcome, cancelled = follow(monkeypatch, state("PENDING"), away, away, state("COMPLETED"))
    assert (exit_code(outcome), cancelled) == (0, [])
    assert caplog.text.count("Unable to contact") == 1


def test_a_job_forgotten_by_slurm(monkeypatch):
    with pytest.raises(LaunchError, match="SLURM no longer knows job 7"):
        follow(monkeypatch, state("RUNNING"), UnknownJobError("Invalid job id specified"))


def test_a_job_queues_as_long_as_allowed(monkeypatch, capsys):
    outcome, cancelled = follow(monkeypatch, state("PENDING", Reason="Priority"), timeout=100.0)
    assert (exit_code(outcome), cancelled) == (69, ["7"])
    assert "job 7 was still pending (Priority) after 100 s" in render(outcome)
    assert capsys.readouterr().err.count("pending (Priority)") == 1


def test_a_requeued_job_may_wait_longer(monkeypatch):
    requeued = state("PENDING", Restarts="1")
    outcome, cancelled = follow(monkeypatch, *[requeued] * 300, state("COMPLETED"), timeout=100.0)
    assert (exit_code(outcome), cancelled) == (0, [])


def test_cancelling_outlasts_a_controller_outage(monkeypatch, capsys):
    answers = [SlurmError("Unable to contact"), SlurmError("Unable to contact"), None]
    asked = []

    def cancel(job):
        asked.append(job)
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(control, "cancel", cancel)

    def look(job_id):
        return state("RUNNING" if answers else "CANCELLED")

    outcome = Followed("7", None, ManualClock(), look).to_its_end([signal.SIGINT])
    assert (outcome.stopped_by, asked) == (signal.SIGINT, ["7"] * 3)
    assert capsys.readouterr().err.count("could not be cancelled") == 1


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("41\n", "41"),
        ("41;cluster\n", "41"),
        ("a site's greeting\n41\n", "41"),
        ("", None),
        ("Submitted batch job 41", None),
    ],
)
def test_the_job_number_that_sbatch_prints(monkeypatch, printed, number):
    done = subprocess.CompletedProcess((), 0, printed, "")
    monkeypatch.setattr(control.subprocess, "run", lambda *unused, **more: done)
    if number is not None:
        assert control.submit("", {}) == number
        return
    with pytest.raises(LaunchError, match="the job may be in the queue"):
        control.submit("", {})


def test_an_outcome_counts_though_slurm_forgot(outside, monkeypatch, tmp_path):
    def forgotten(script, options, signals):
        (folder,) = tmp_path.iterdir()
        leave(folder, JobOutcome((), initialised=True, reported=3))
        raise LaunchError("SLURM no longer knows job 7")

    monkeypatch.setattr("tfcollective_launchers.slurm.launcher._follow", forgotten)
    spec = JobSpec(("python",), 1, call=FunctionCall(b"", ()), platform={"folder": str(tmp_path)})
    assert SlurmLauncher().run(spec).reported == 3
    monkeypatch.setattr("tfcollective_launchers.slurm.launcher.left", lambda folder: None)
    with pytest.raises(LaunchError, match="no longer knows"):
        SlurmLauncher().run(spec)


def test_output_is_copied_as_it_comes(tmp_path):
    path, out = tmp_path / "out", io.BytesIO()
    tail = Tail(str(path), out)
    assert not tail.copy()
    path.write_bytes(b"one\n")
    assert tail.copy()
    with path.open("ab") as file:
        file.write(b"two\n")
    tail.copy()
    path.write_bytes(b"new\n")  # the job has begun again, with a file that it does not append to
    tail.copy()
    assert out.getvalue() == b"one\ntwo\nnew\n"


def test_a_submitted_job_is_not_restarted_here(outside, monkeypatch):
    calls = []
    monkeypatch.setattr(SlurmLauncher, "run", lambda self, spec, **options: calls.append(spec) or failed)
    failed = JobOutcome((), initialised=True, reported=1)
    assert run_job(SlurmLauncher(), JobSpec(("true",), 1, max_restarts=3)) is failed
    assert len(calls) == 1


def test_a_function_and_its_outcome_travel_in_files(tmp_path):
    spec = JobSpec(("python",), 2, call=FunctionCall(b"\x80\x00", ("/here",)), platform={"srun_args": ["-v"]})
    stage(tmp_path, spec)
    assert staged(tmp_path).call == spec.call
    assert left(tmp_path) is None
    leave(tmp_path, JobOutcome((), initialised=True, results={"worker:0": b"\xff"}))
    assert left(tmp_path).results == {"worker:0": b"\xff"}
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


@pytest.mark.parametrize(
    ("outcome", "ended"),
    [
        (JobOutcome((), initialised=True, stopped_by=15), True),
        (JobOutcome((), initialised=True, stopped_by=2), False),
        (JobOutcome((), initialised=True), False),
        (JobOutcome((), initialised=True, agent_failure="x", host_lost=True), False),
        (JobOutcome((), initialised=True, start_failure=StartFailure("all left", timed_out=False, met=True)), True),
        (JobOutcome((), initialised=True, start_failure=StartFailure("late", timed_out=True)), False),
    ],
)
def test_when_a_job_goes_back_into_the_queue(outcome, ended):
    assert ended_by(outcome) == ended


def provider(monkeypatch, job, node):
    monkeypatch.setattr("tfcollective_launchers.slurm.provider.job_state", lambda *unused: job)
    monkeypatch.setattr("tfcollective_launchers.slurm.provider.node_states", lambda *unused: {node.name: node})
    return SlurmProvider("7", {"n1": ("true",)}, {}, elastic=False)


def test_a_node_that_slurm_loses_is_lost(monkeypatch):
    assert provider(monkeypatch, state("RUNNING", NodeList="n1"), IDLE).kind is NodeKind.LENT


def test_slurm_explains_a_lost_node(monkeypatch):
    down = control.NodeState("n1", "", "DOWN*", "Not responding")
    one = provider(monkeypatch, state("RUNNING", NodeList="n[1-2]"), down)
    one._processes["n1"] = type("Running", (), {"exit_code": None})()
    facts = NodeFacts("n1", pid=5)
    assert one.explain(facts, 15.0) == "has not answered for 15 s; SLURM says: n1 is DOWN*: Not responding"
    timeout = provider(monkeypatch, state("TIMEOUT", NodeList="n1"), control.NodeState("n1", "", "IDLE", ""))
    timeout._processes["n1"] = type("Ended", (), {"exit_code": None})()
    assert timeout.explain(facts, 0.0) == "was ended by a signal; SLURM says: job 7 is TIMEOUT"


def test_slurm_describes_missing_nodes(monkeypatch):
    down = control.NodeState("n1", "", "DOWN*", "Not responding")
    one = provider(monkeypatch, state("RUNNING", NodeList="n[1-2]"), down)
    assert one.describe_missing(["n1", "n2"]) == "n1 is DOWN*: Not responding, n2"

    def no_answer(*unused):
        raise SlurmError("scontrol gives no answer")

    monkeypatch.setattr("tfcollective_launchers.slurm.provider.node_states", no_answer)
    assert one.describe_missing(["n1", "n2"]) == "n1, n2 (scontrol gives no answer)"


SETTINGS = NodeSettings("127.0.0.1:9", "ab" * 32, "n1")
IDLE = control.NodeState("n1", "", "MIXED", "")


@pytest.mark.parametrize(
    ("code", "enrolled", "again"), [(140, (), True), (140, ("n1",), False), (1, (), False), (64, (), False)]
)
def test_an_srun_that_launched_nothing_is_restarted(monkeypatch, code, enrolled, again):
    provider(monkeypatch, state("RUNNING", NodeList="n1"), IDLE)
    clock = ManualClock()
    command = {"n1": ("sh", "-c", f"exit {code}")}
    with SlurmProvider("7", command, {}, elastic=False, enrolled=lambda: enrolled, clock=clock) as one:
        one.request([SETTINGS])
        first = one._processes["n1"]
        found = []
        until(lambda: found.extend(one.events()) or found or one._due)
        assert bool(found) is not again
        clock.advance(60.0)
        one.events()
        assert (one._processes["n1"] is first) is not again


@pytest.mark.parametrize(("said", "unknown"), [("Invalid job id specified", True), ("Unable to contact", False)])
def test_slurms_words_tell_refusals_apart(said, unknown):
    with pytest.raises(SlurmError, match=f"exit code 1: slurm_load_jobs error: {said}") as raised:
        control.ask("sh", "-c", f"echo slurm_load_jobs error: {said} >&2; exit 1")
    assert isinstance(raised.value, UnknownJobError) == unknown


def test_slurm_is_asked_once_for_many_losses(monkeypatch):
    provider(monkeypatch, state("RUNNING", NodeList="n[1-40]"), IDLE)
    asked = []

    def no_answer(*unused):
        asked.append(1)
        raise SlurmError("scontrol gives no answer")

    monkeypatch.setattr("tfcollective_launchers.slurm.provider.job_state", no_answer)
    names = [f"n{number}" for number in range(1, 41)]
    listed = []
    with SlurmProvider(
        "7",
        dict.fromkeys(names, ("sh", "-c", "exit 140")),
        {},
        elastic=False,
        enrolled=lambda: listed.append(1) or names[:20],
        clock=ManualClock(),
    ) as one:
        one.request([replace(SETTINGS, name=name) for name in names])
        until(lambda: all(process.exit_code is not None for process in one._processes.values()))
        assert len(one.events()) == 20
    assert (len(asked), len(listed)) == (1, 1)


def test_an_srun_is_not_started_again_for_ever(monkeypatch, caplog):
    provider(monkeypatch, state("RUNNING", NodeList="n1"), IDLE)
    clock = ManualClock()
    with SlurmProvider("7", {"n1": ("sh", "-c", "exit 140")}, {}, elastic=False, clock=clock) as one:
        one.request([SETTINGS])
        found = []

        def look():
            clock.advance(60.0)
            found.extend(one.events())
            return found

        until(look)
        assert found[0].how == "has ended without a report (sh: exit code 140)"
    assert caplog.text.count("trying again") == 5


def test_allocated_nodes_that_do_not_drain_count(monkeypatch):
    monkeypatch.setattr(
        "tfcollective_launchers.slurm.provider.job_state", lambda *unused: state("RUNNING", NodeList="n[1-2]")
    )
    nodes = {name: control.NodeState(name, "", "MIXED", "") for name in ("n1", "n3")}
    nodes["n2"] = control.NodeState("n2", "", "MIXED+DRAIN", "fan")
    monkeypatch.setattr("tfcollective_launchers.slurm.provider.node_states", lambda *unused: nodes)
    hosts = AllocationHosts("7", (Host("n1"), Host("n2"), Host("n3", 2)))
    assert hosts.ask() == (Host("n1"),)
    monkeypatch.setattr("tfcollective_launchers.slurm.provider.job_state", lambda *unused: state("COMPLETING"))
    assert hosts.ask() == (Host("n1"),)


def test_numbers_of_jobs_belong_to_slurm():
    assert isinstance(find_manager("4711"), SlurmLauncher)
    assert isinstance(find_manager("4711_3"), SlurmLauncher)


def test_batch_scripts_without_options_have_few_lines(outside):
    script = batch_script(JobSpec(("x",), 2), SlurmOptions(), ("x",))
    assert script == (
        "#!/bin/bash\n#SBATCH --job-name=tfcollective\n#SBATCH --ntasks=2\n#SBATCH --signal=B:TERM@60\n"
        "#SBATCH --no-requeue\n\nexec x\n"
    )


def test_submission_uses_the_launchers_exit_code():
    assert submission.outcome_of(state("FAILED", ExitCode="69:0"), "7").reported == 69


# ---- tfcollective check --launcher slurm -----------------------------------------------------------------------------


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """Programs of our own on the PATH: each says a text, and ends with a code."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def add(name, text, code=0, version="slurm 23.11.4"):
        path = tmp_path / name
        stream = 2 if name == "sbatch" else 1
        asked = f'[ "$1" != --version ] || {{ echo "{version}"; exit; }}'
        path.write_text(f'#!/bin/sh\n{asked}\necho "{text}" >&{stream}\nexit {code}\n')
        path.chmod(0o700)

    for name, text in (("srun", ""), ("sbatch", "sbatch: Job 5 to start at noon"), ("scontrol", "Slurmctld is UP")):
        add(name, text)
    return add


def look(**platform):
    return list(SlurmLauncher().check(platform))


def test_outside_allocations_slurm_checks_the_submission(programs, outside):
    findings = {one.name: one for one in look(partition="gpu")}
    assert list(findings) == ["commands", "controller", "submission"]
    assert all(one.ok for one in findings.values()), findings
    assert findings["submission"].detail == "Job 5 to start at noon"
    programs("sbatch", "sbatch: error: invalid partition specified: gpu", 1)
    last = look(partition="gpu")[-1]
    assert not last.ok
    assert "invalid partition specified: gpu" in last.detail


def test_inside_of_one_its_nodes_are_said(programs, inside):
    last = look()[-1]
    assert (last.name, last.ok) == ("allocation", True)
    assert last.detail == "job 17, nodes with their tasks: gpu07 (2), gpu08 (2), big (1)"


def test_a_controller_that_does_not_answer_ends_it(programs, outside):
    programs("scontrol", "Slurmctld(primary) at head is DOWN", 1)
    last = look()[-1]
    assert (last.name, last.ok) == ("controller", False)
    assert "head is DOWN" in last.detail


def test_without_slurms_commands_they_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (only,) = look()
    assert (only.name, only.ok) == ("commands", False)
    assert "srun cannot be run" in only.detail


def test_a_job_is_found_among_the_users(monkeypatch):
    def one(name, unreachable=None):
        return {"job": name, "tasks": [], "unreachable": unreachable}

    jobs = [one("job-1"), one("slurm-171-2"), one("slurm-17-3", "gone"), one("slurm-17-4"), one("slurm-18-5")]
    answers = {"scontrol": "JobId=17 JobState=RUNNING ExitCode=0:0 BatchHost=gpu07", "srun": json.dumps(jobs)}
    monkeypatch.setattr(control, "ask", lambda command, *words, **unused: answers[command])
    assert SlurmLauncher().describe("17").status == JobSnapshot("slurm-17-4", ())
    answers["srun"] = json.dumps(jobs[:3])
    assert SlurmLauncher().describe("17").status is None
