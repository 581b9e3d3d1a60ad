"""Elastic jobs before they start: what is refused, and how long a host that loses ranks is left alone."""

from dataclasses import replace

import pytest
from tfcollective_launchers.yarn.launcher import YarnLauncher

from tfcollective.control.rounds import Bounds
from tfcollective.errors import ConfigError, UnsupportedError
from tfcollective.launch.plan.spec import JobSpec
from tfcollective.launch.providers.join import JoinedLauncher
from tfcollective.launch.replacements import blocked_for
from tfcollective.task_specs import TaskSpec, trainers_of


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_proc": 0}, "min_proc: expected 1 or more, got 0"),
        ({"min_proc": True}, "min_proc: expected 1 or more, got True"),
        ({"min_proc": 3}, "min_proc: the job starts with 2 ranks, fewer than the 3 it needs"),
        ({"min_proc": 1, "engine": "horovod"}, "engine: an elastic job needs the native engine, not horovod"),
        ({"min_proc": 1, "timeline": "t.json"}, "timeline: an elastic job has none"),
        ({"min_proc": 1, "emit_tf_config": True}, "emit_tf_config: a TF_CONFIG lists the ranks"),
        ({"preemption_file": "/notice"}, "preemption_file: it needs min_proc"),
        ({"preemption_command": ("true",)}, "preemption_command: it needs min_proc"),
        ({"min_proc": 1, "preemption_command": "true"}, "preemption_command: expected a command and its arguments"),
        ({"min_proc": 1, "preemption_file": 1}, "preemption_file: expected a path, got 1"),
        ({"min_proc": 1, "elastic_timeout": 0}, "elastic timeout: expected a number of seconds, above 0"),
    ],
)
def test_what_cannot_be_elastic_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        JobSpec(("x",), 2, **options)


def test_a_job_on_yarn_is_not_elastic():
    with pytest.raises(UnsupportedError, match="min_proc, min_instances: on YARN a lost rank ends the job"):
        YarnLauncher().plan(JobSpec(("x",), 2, min_proc=1))


def test_the_spec_of_the_workers_may_say_how_few_ranks_are_enough():
    specs = {"chief": TaskSpec(1, 1), "worker": TaskSpec(1, 1, instances=3, min_instances=1)}
    spec = JobSpec(("x",), 4, tasks=trainers_of(specs), task_specs=specs)
    assert (spec.min_proc, spec.bounds.smallest, spec.bounds.largest) == (2, 2, 4)
    assert replace(spec, restarts=1).bounds == spec.bounds
    with pytest.raises(ConfigError, match="min_proc: got 3, but min_instances of the workers asks for 2"):
        replace(spec, min_proc=3)


def test_a_job_of_agents_that_others_start_is_not_elastic():
    with pytest.raises(UnsupportedError, match="min_proc: a lost rank ends a job whose agents others start"):
        JoinedLauncher().plan(JobSpec(("x",), 2, min_proc=1, platform={"agents": 2}))


def test_a_job_is_elastic_if_it_says_how_few_ranks_are_enough():
    assert JobSpec(("x",), 4).bounds is None
    assert JobSpec(("x",), 4, min_proc=2, elastic_timeout=7.0, op_timeout=9.0).bounds == Bounds(2, 4, 4, 7.0, 9.0)


def test_a_host_is_left_alone_for_longer_after_each_loss():
    assert [blocked_for(losses) for losses in (0, 1, 2, 3, 4, 20)] == [0.0, 0.0, 30.0, 60.0, 120.0, 3600.0]
