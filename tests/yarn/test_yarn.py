"""Jobs on the real YARN of tools/hadoop: what they do, and how they end when something ends them."""

import os
import signal
import subprocess
import sys

import pytest
import yarn_jobs

import tfcollective
from tfcollective import ConfigError, LaunchError, RendezvousError, TaskSpec, WorkerFailedError

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(600)]

PAIR = {"chief": TaskSpec("400 MiB", 1), "worker": TaskSpec("400 MiB", 1)}


def test_keras_reaches_the_loss_of_this_machine(yarn, on_yarn):
    specs = {"chief": TaskSpec("1500 MiB", 1), "worker": TaskSpec("1500 MiB", 1, instances=2)}
    there = tfcollective.run(yarn_jobs.train, task_specs=specs, start_timeout=300, **on_yarn())
    here = tfcollective.run(yarn_jobs.train, task_specs=specs, start_timeout=300)
    assert len(there) == 3
    assert there == here


def test_ranks_files_labels_output_and_the_table(yarn, on_yarn, tmp_path, capfd):
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "inside.txt").write_text("inside")
    specs = {"chief": TaskSpec("400 MiB", 1), "worker": TaskSpec("400 MiB", 2, 1, 2, label="gpu")}
    large = bytes(5 << 20)  # more than skein's own store could take
    options = on_yarn(files={"more": str(folder)}, pre_script_hook="touch from_the_hook")
    chief, *workers = tfcollective.run(yarn_jobs.report, (large,), task_specs=specs, **options)
    assert chief[:4] == (0, 3, 3.0, "127.0.0.11")
    assert [one[:4] for one in workers] == [(1, 3, 3.0, "127.0.0.12"), (2, 3, 3.0, "127.0.0.12")]
    assert chief[4] != workers[0][4] == workers[1][4]
    for one in (chief, *workers):
        assert {"more", "from_the_hook"} <= set(one[5])
        assert one[6] == len(large)
    shown = capfd.readouterr()
    assert sorted(shown.out.splitlines()) == [f"[{rank}]<stdout>: rank {rank} says hello" for rank in range(3)]
    rows = [line.split() for line in shown.err.splitlines() if "succeeded" in line]
    assert [row[:2] for row in rows] == [
        ["chief:0", "127.0.0.11"],
        ["worker:0", "127.0.0.12"],
        ["worker:1", "127.0.0.12"],
    ]
    assert all(row[-1].startswith("http://127.0.0.1") for row in rows)


def test_a_container_gets_its_gpus_from_yarn(yarn, on_yarn, when_all_run, tmp_path):
    """As YARN counts them: the machine has none. Its processes are a node of their own."""
    specs = {"chief": TaskSpec("400 MiB", 1), "worker": TaskSpec("400 MiB", 2, 1, 2, gpus=2, label="gpu")}
    used = {}

    def look(app_id):
        used.update((node["nodeHostName"], _gpus(node["usedResource"])) for node in yarn.nodes())
        (tmp_path / "go").touch()

    thread = when_all_run(look, 3)
    assert tfcollective.run(yarn_jobs.wait_for, ("go",), task_specs=specs, **on_yarn()) == [3.0] * 3
    thread.join(60)
    assert used == {"127.0.0.11": 0, "127.0.0.12": 2}


def _gpus(resources):
    kinds = resources["resourceInformations"]["resourceInformation"]
    return {one["name"]: one["value"] for one in kinds}["yarn.io/gpu"]


def test_a_raising_task_shows_its_traceback(yarn, on_yarn):
    with pytest.raises(WorkerFailedError, match="this rank has had enough") as caught:
        tfcollective.run(yarn_jobs.fail_on_one, task_specs=PAIR, **on_yarn())
    assert caught.value.first["task"] == "worker:0"
    assert caught.value.first["exit_code"] == 1
    assert "Traceback" in str(caught.value)


def test_the_application_is_killed(yarn, on_yarn, when_all_run):
    def kill(app_id):
        subprocess.run(["yarn", "application", "-kill", app_id], check=True, capture_output=True)

    when_all_run(kill)
    with pytest.raises(LaunchError, match=r"has ended \(killed\)"):
        tfcollective.run(yarn_jobs.go_on, task_specs=PAIR, **on_yarn())


def test_the_chiefs_container_is_killed(yarn, on_yarn, when_all_run):
    def kill(app_id):
        os.kill(yarn.process(app_id, "tfcollective_launchers.yarn.container", "chief-0"), signal.SIGKILL)

    when_all_run(kill)
    with pytest.raises(LaunchError, match="chief-0"):
        tfcollective.run(yarn_jobs.go_on, task_specs=PAIR, **on_yarn())


def test_a_workers_container_is_asked_to_end(yarn, on_yarn, when_all_run):
    """As YARN does a moment before it kills one: the agent stops its rank and reports that."""

    def ask(app_id):
        os.kill(yarn.process(app_id, "tfcollective_launchers.yarn.container", "worker-0"), signal.SIGTERM)

    when_all_run(ask)
    with pytest.raises(LaunchError, match=r"the container of worker-0 on \S+ was ended (\(exit code 143|by SIGTERM)"):
        tfcollective.run(yarn_jobs.go_on, task_specs=PAIR, **on_yarn())


def test_the_coordinators_container_is_killed(yarn, on_yarn, when_all_run):
    def kill(app_id):
        os.kill(yarn.process(app_id, "com.anaconda.skein.ApplicationMaster", "java"), signal.SIGKILL)

    when_all_run(kill)
    with pytest.raises(LaunchError, match="without its coordinator's report"):
        tfcollective.run(yarn_jobs.go_on, task_specs=PAIR, **on_yarn())


def test_the_coordinator_itself_is_killed(yarn, on_yarn, when_all_run):
    def kill(app_id):
        os.kill(yarn.process(app_id, "tfcollective_launchers.yarn.master", "python"), signal.SIGKILL)

    when_all_run(kill)
    with pytest.raises(LaunchError, match="without its coordinator's report"):
        tfcollective.run(yarn_jobs.go_on, task_specs=PAIR, **on_yarn())


def test_yarn_kills_an_oversized_container(yarn, on_yarn):
    with pytest.raises(LaunchError, match=r"worker-0.*physical memory"):
        tfcollective.run(yarn_jobs.eat_memory, task_specs=PAIR, **on_yarn())


def _with_support(env):
    """So that what is not a function finds the module of the tests, too."""
    path = filter(None, [env.get("PYTHONPATH"), os.path.dirname(yarn_jobs.__file__)])
    return {**env, "PYTHONPATH": os.pathsep.join(path)}


def submit_command(on_yarn, *options):
    arguments = [f"--env={name}={value}" for name, value in on_yarn()["env"].items()]
    specs = ["--task-spec=chief:memory=400MiB,vcores=1", "--task-spec=worker:memory=400MiB,vcores=1"]
    run = [sys.executable, "-m", "tfcollective", "run", "--launcher", "yarn", "--remote-python", sys.executable]
    return [*run, *arguments, *specs, *options, "python", "-c", "import yarn_jobs; yarn_jobs.go_on()"]


@pytest.fixture
def submitter(on_yarn):
    """A job that another process has submitted."""
    started = []

    def start(*options):
        command = submit_command(lambda: {"env": _with_support(on_yarn()["env"])}, *options)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_submitter_is_killed(yarn, submitter, tmp_path):
    process = submitter()
    yarn.until(lambda: len(list(tmp_path.glob("here-*"))) == 2, "all ranks run", 300)
    app_id = yarn.only_app()
    process.kill()
    yarn.until(lambda: not yarn.apps(), "the application has ended")
    assert yarn.app(app_id)["finalStatus"] == "KILLED"


def test_ctrl_c_ends_the_application(yarn, submitter, tmp_path):
    process = submitter()
    yarn.until(lambda: len(list(tmp_path.glob("here-*"))) == 2, "all ranks run", 300)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT
    assert "stopped by SIGINT" in said
    assert not yarn.apps()


@pytest.mark.parametrize(
    ("specs", "platform", "said"),
    [
        (PAIR, {"queue": "nosuch"}, "no queue 'nosuch'; there are: default"),
        ({"worker": TaskSpec("400 MiB", 1, label="tpu")}, {}, "no node has the label 'tpu'; the labels are gpu"),
        ({"worker": TaskSpec("400 GiB", 1)}, {}, "worker: 409600 MiB, 1 vcores for one container; the largest node"),
        ({"worker": TaskSpec("400 MiB", 400)}, {}, "worker: 400 MiB, 400 vcores for one container"),
        ({"worker": TaskSpec("400 MiB", 1, gpus=3, label="gpu")}, {}, r"3 gpus for one.*8 vcores, 2 gpus \("),
        ({"worker": TaskSpec("400 MiB", 1, gpus=1)}, {}, r"1 gpus for one container; the largest .* 8 vcores \("),
    ],
    ids=["queue", "label", "memory", "vcores", "gpus", "gpus without their label"],
)
def test_an_impossible_request_is_not_sent(yarn, on_yarn, specs, platform, said):
    before = len(yarn.apps("NEW,ACCEPTED,RUNNING,FINISHED,FAILED,KILLED"))
    with pytest.raises(ConfigError, match=said):
        tfcollective.run(yarn_jobs.report, task_specs=specs, **on_yarn(**platform))
    assert len(yarn.apps("NEW,ACCEPTED,RUNNING,FINISHED,FAILED,KILLED")) == before


def test_a_refusal_of_the_queue_is_named(yarn, on_yarn):
    specs = {"chief": TaskSpec("400 MiB", 1), "worker": TaskSpec("400 MiB", 7)}  # of the 8 that the node has
    said = r"has ended \(failed\).*Invalid resource request.*vCores:6[,>].*asks for .*worker-0 \(400 MiB, 7 vcores\)"
    with pytest.raises(LaunchError, match=said):
        tfcollective.run(yarn_jobs.report, task_specs=specs, **on_yarn())


def test_late_containers_release_the_others(yarn, on_yarn):
    specs = {"chief": TaskSpec("400 MiB", 1), "worker": TaskSpec("4 GiB", 1, instances=2)}
    said = r"[012] of 3 containers came within 90 s; missing: .*worker-\d \(4096 MiB, 1 vcores\).*free now: 127.0.0.11"
    with pytest.raises(RendezvousError, match=said):
        tfcollective.run(yarn_jobs.report, task_specs=specs, **on_yarn(allocation_timeout=90.0))


def test_an_environment_that_fails_is_quoted(yarn, on_yarn):
    hook = 'case "$SKEIN_CONTAINER_ID" in worker*) echo no such environment >&2; exit 3;; esac'
    with pytest.raises(
        LaunchError, match=r"(?s)container of worker-0 was ended.*before the job had begun.*no such environment"
    ):
        tfcollective.run(yarn_jobs.report, task_specs=PAIR, **on_yarn(pre_script_hook=hook))


def test_an_absent_interpreter_is_named(yarn, on_yarn):
    with pytest.raises(LaunchError, match=r"(?s)without its coordinator's report.*/nowhere/python: No such file"):
        tfcollective.run(yarn_jobs.report, task_specs=PAIR, **on_yarn(python="/nowhere/python"))


def test_containers_run_one_function_after_another(yarn, on_yarn):
    with tfcollective.cluster(PAIR, **on_yarn()) as kept:
        first, second = kept.run(yarn_jobs.report), kept.run(yarn_jobs.report)
        assert [one[:4] for one in first] == [(0, 2, 1.0, "127.0.0.11"), (1, 2, 1.0, "127.0.0.11")]
        assert first == second
        with pytest.raises(WorkerFailedError, match="this rank has had enough"):
            kept.run(yarn_jobs.fail_on_one)
        assert kept.run(yarn_jobs.report) == first


def test_an_hdfs_module_replaces_the_experiment(yarn, on_yarn, hdfs, tmp_path, capfd):
    import skein

    (tmp_path / "a_task.py").write_text("import yarn_jobs; print('module on rank', yarn_jobs.report()[0], flush=True)")
    hdfs("dfs", "-put", str(tmp_path / "a_task.py"), hdfs.url)
    with skein.Client(security=skein.Security.new_credentials()) as client:
        options = {"python": sys.executable, "env": _with_support(on_yarn()["env"]), "skein_client": client}
        metrics = tfcollective.run_on_yarn(
            str, PAIR, custom_task_module="a_task", files={"a_task.py": f"{hdfs.url}/a_task.py"}, name="mine", **options
        )
        assert client.application_report(metrics.app_id).name == "mine"  # it was not closed
    assert metrics.container_duration.keys() == {"chief:0", "worker:0"}
    said = capfd.readouterr().out
    assert {f"[{rank}]<stdout>: module on rank {rank}" for rank in range(2)} <= set(said.splitlines())


def test_a_detached_job_ends_by_its_id(yarn, submitter, tmp_path):
    process = submitter("--detach", "--job-name", "alone")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    yarn.until(lambda: len(list(tmp_path.glob("here-*"))) == 2, "all ranks run", 300)
    app_id = yarn.only_app()
    assert f"tfcollective status|logs|kill {app_id}" in said
    assert yarn.app(app_id)["name"] == "alone"
    status = ask("status", app_id)
    assert "state: running" in status
    assert "chief:0" in status
    assert "worker:0" in status
    ask("kill", app_id)
    assert not yarn.apps()
    assert "state: killed" in ask("status", app_id)
    yarn.until(lambda: "rank 1 is up" in _asked("logs", app_id).stdout, "YARN has collected the logs")


@pytest.mark.kill
def test_a_masterless_detached_job_can_be_ended(yarn, submitter, tmp_path):
    process = submitter("--detach", "--min-np", "2")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    yarn.until(lambda: len(list(tmp_path.glob("here-*"))) == 2, "all ranks run", 300)
    app_id = yarn.only_app()
    os.kill(yarn.process(app_id, "com.anaconda.skein.ApplicationMaster", "java"), signal.SIGKILL)
    ask("logs", app_id)
    yarn.until(lambda: "master: attempt 2; lost before it: 1" in ask("status", app_id), "the next master runs", 300)
    yarn.until(lambda: "2 ranks, 2 to 2 are possible" in ask("status", app_id), "all ranks run again", 300)
    ask("kill", app_id)
    assert "state: killed" in ask("status", app_id)


def ask(command, app_id):
    done = _asked(command, app_id)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _asked(command, app_id):
    return subprocess.run(
        [sys.executable, "-m", "tfcollective", command, app_id],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )


def test_what_does_not_exist_is_said(yarn):
    command = [sys.executable, "-m", "tfcollective", "status", "application_1000000000000_0001"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 70
    assert "application_1000000000000_0001" in done.stderr
    assert "Traceback" not in done.stderr
