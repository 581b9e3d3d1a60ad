"""run_on_yarn and the command line, up to where YARN would begin."""

from importlib.metadata import entry_points

import pytest
from click.testing import CliRunner
from tfcollective_launchers.yarn.api import run_on_yarn
from tfcollective_launchers.yarn.launcher import YarnLauncher

from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.task_specs import TaskSpec
from tfcollective._cli.run import run
from tfcollective._launch.launcher import GROUP, find_manager

installed = pytest.mark.skipif(
    not entry_points(group=GROUP, name="yarn"),
    reason="the launchers are found by the metadata of the installed package",
)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"cuda_runtime_hdfs_path": "hdfs:///cuda"}, UnsupportedError, "CUDA comes with the environment"),
        ({"nb_retries": -1}, ConfigError, "max_restarts .*: expected 0 or more"),
        ({"nb_retries": 1.5}, ConfigError, "max_restarts .*: expected 0 or more"),
        ({"nonsense": 1}, ConfigError, "unknown option 'nonsense'"),
        ({"task_specs": {"ps": TaskSpec(1, 1)}}, ConfigError, "no parameter servers here"),
        ({"queue": ""}, ConfigError, "queue .*: expected a text of one line"),
        ({"python": "python3"}, ConfigError, "an absolute path on the nodes"),
        ({"files": {"a": "/nowhere/b"}}, ConfigError, "/nowhere/b does not exist"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments, error, said):
    with pytest.raises(error, match=said):
        run_on_yarn(lambda: None, **{"task_specs": {"chief": TaskSpec("1 GiB", 1)}, **arguments})


def twice():
    return 2


def test_the_same_call_runs_on_this_machine():
    metrics = run_on_yarn(twice, {"worker": TaskSpec("1 GiB", 1)}, launcher="local", queue="any", name="any")
    assert metrics.results == (2,)
    assert metrics.total_training_duration.total_seconds() > 0
    assert metrics.app_id == ""


def test_a_module_replaces_the_experiment_everywhere(capfd):
    metrics = run_on_yarn(twice, {"worker": TaskSpec("1 GiB", 1)}, launcher="local", custom_task_module="this")
    assert metrics.results == ()
    assert "The Zen of Python" in capfd.readouterr().out


@installed
def test_ids_of_applications_belong_to_yarn():
    assert isinstance(find_manager("application_1763000000000_0042"), YarnLauncher)
    with pytest.raises(
        ConfigError, match=r"'job-1' is no job that runs on this machine .* nor one of a platform that keeps jobs"
    ):
        find_manager("job-1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--partition", "a"], "--queue or --partition needs --launcher kubernetes, slurm or yarn"),
        (["--launcher", "ssh", "--detach"], "--detach needs --launcher kubernetes, slurm or yarn"),
        (["--launcher", "yarn", "--ship", "a"], "files (--ship): expected NAME=VALUE, got 'a'"),
        (["--launcher", "local", "-H", "nowhere.invalid:1"], "--launcher local runs on this machine only"),
        (["--launcher", "agents"], "needs --wait-for-agents"),
        (["--launcher", "mpi"], "--launcher mpi needs --engine mpi, which starts"),
        (["--launcher", "mesos"], "unknown launcher 'mesos': expected one of agents, kubernetes, local"),
    ],
)
def test_options_that_do_not_fit_together(arguments, said):
    result = CliRunner().invoke(run, ["-np", "1", *arguments, "python", "-c", "pass"])
    assert said in str(result.exception)


@installed
def test_who_leaves_cannot_start_again():
    arguments = ["--launcher", "yarn", "-np", "1", "--detach", "--max-restarts", "2", "--print-plan", "true"]
    assert "detach cannot be combined with max_restarts" in str(CliRunner().invoke(run, arguments).exception)


@installed
def test_the_plan_names_the_containers():
    arguments = ["--launcher", "yarn", "--task-spec", "chief", "--task-spec", "worker:instances=2,vcores=3"]
    result = CliRunner().invoke(run, [*arguments, "--print-plan", "python", "-c", "pass"])
    assert "rank 2 (worker:1, local rank 0, host worker-1)" in result.output
    assert "OMP_NUM_THREADS=3" in result.output


def test_a_non_function_is_refused_before_submission():
    with pytest.raises(ConfigError, match="experiment_fn: expected a function, got 'experiment'"):
        run_on_yarn("experiment", {"chief": TaskSpec("1 GiB", 1)})
