"""What ``tfcollective.run`` refuses before it starts anything."""

import inspect
import threading

import pytest

import tfcollective
from tfcollective._base import payload
from tfcollective._base.errors import LaunchError
from tfcollective._base.failures import ExitRecord
from tfcollective._launch import api
from tfcollective._launch.launcher import JobOutcome, find_launcher
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.platforms.local import LocalLauncher
from tfcollective._launch.running import function


def test_the_signature_is_for_good():
    parameters = inspect.signature(tfcollective.run).parameters
    assert [name for name, one in parameters.items() if one.kind is not one.KEYWORD_ONLY] == [
        "fn",
        "args",
        "kwargs",
        "np",
        "options",
    ]
    assert [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY] == [
        "launcher",
        "task_specs",
        "nb_retries",
    ]


def test_what_is_no_function_is_refused():
    with pytest.raises(
        tfcollective.ConfigError,
        match=r"fn: expected a function, got 'train\.py'; to start a script, use `tfcollective run`",
    ):
        tfcollective.run("train.py", np=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"args": 3}, "args: expected a list or tuple of the function's arguments, got 3"),
        ({"args": "text"}, "args: expected a list or tuple of the function's arguments, got 'text'"),
        ({"kwargs": [1]}, r"kwargs: expected a dict of the function's named arguments, got \[1\]"),
    ],
)
def test_what_are_no_arguments_is_refused(call, message):
    with pytest.raises(tfcollective.ConfigError, match=message):
        tfcollective.run(print, np=2, **call)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus_per_proc": 0}, "gpus_per_proc .*: expected 1 or more, got 0"),
        ({"bucket_mb": "many"}, "bucket_mb .*: expected a number of MiB above 0, or auto, got 'many'"),
        ({"bucket_mb": -1}, "bucket_mb .*: expected a number of MiB above 0, or auto, got -1"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(tfcollective.ConfigError, match=message):
        tfcollective.run(print, np=2, **options)


def test_options_of_the_ranks_reach_them_as_variables():
    spec = api.function_job(print, np=2, gpus_per_proc=2, oversubscribe_gpus=True, bucket_mb=0.5, env={"DATA": "/d"})
    assert spec.rank_env == {
        "TFCOLLECTIVE_BUCKET_BYTES": "524288",
        "TFCOLLECTIVE_GPUS_PER_PROC": "2",
        "TFCOLLECTIVE_SHARE_GPUS": "1",
        "DATA": "/d",
    }
    assert api.function_job(print, np=2).rank_env == {}


def test_an_unknown_option_is_named():
    with pytest.raises(
        tfcollective.ConfigError,
        match=r"unknown option 'queue'; known: batch_norm, blacklist, bucket_mb, cooldown_range, cwd, "
        "data_parallel, discovery, elastic_timeout, emit_tf_config, engine, env",
    ):
        tfcollective.run(print, np=2, queue="a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task_specs": {}}, "no task trains"),
        ({"task_specs": {"ps": tfcollective.TaskSpec(1, 1)}}, "there are no parameter servers"),
        (
            {"task_specs": {"worker": tfcollective.TaskSpec(1, 1)}, "np": 2},
            r"num_proc \(-np\) and task_specs \(--task-spec\) cannot be combined",
        ),
        ({"tasks": ()}, "unknown option 'tasks'"),
    ],
)
def test_bad_specs_are_refused(options, message):
    with pytest.raises(tfcollective.ConfigError, match=message):
        tfcollective.run(print, **options)


def test_a_call_that_is_too_large_is_refused():
    text = "'print' and its arguments are 2 MiB when pickled; at most 1 MiB"
    with pytest.raises(tfcollective.InvalidArgumentError, match=text):
        function.make_call(print, (b"x" * (2 << 20),), {}, (), most=1 << 20)


def test_a_bad_np_is_refused():
    with pytest.raises(tfcollective.ConfigError, match="expected 1 or more, got 0"):
        tfcollective.run(print, np=0)


def test_a_function_that_cannot_be_pickled_is_refused():
    lock = threading.Lock()
    with pytest.raises(tfcollective.InvalidArgumentError, match="cannot be sent to another process"):
        tfcollective.run(lambda: lock, np=2)


def test_launchers_are_found_by_name():
    assert isinstance(find_launcher("local"), LocalLauncher)
    with pytest.raises(
        tfcollective.ConfigError, match="unknown launcher 'cloud': expected one of agents, kubernetes, local"
    ):
        find_launcher("cloud")
    with pytest.raises(tfcollective.ConfigError, match=r"'slrum': .*; did you mean slurm\?"):
        find_launcher("slrum")


def test_ranks_that_left_have_no_result():
    exits = tuple(ExitRecord(f"worker:{rank}", rank, "n", 7, 0, None, 1.0) for rank in range(2))
    outcome = JobOutcome(exits, initialised=True, results={"worker:1": payload.dumps(5, "it")})
    fixed, elastic = JobSpec(("x",), 2), JobSpec(("x",), 2, min_proc=1)
    assert list(api.results_of(outcome, api.results_wanted(elastic, outcome))) == [5]
    with pytest.raises(LaunchError, match="ended without leaving a result: rank 0"):
        api.results_of(outcome, api.results_wanted(fixed, outcome))
