"""Elastic jobs before they start: what is refused, and how long a host that loses ranks is left alone."""

from dataclasses import replace

import pytest
from tfcollective_launchers.yarn.launcher import YarnLauncher

from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.task_specs import TaskSpec, trainers_of
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._base.verdict import Rules
from tfcollective._control.state.rounds import Bounds
from tfcollective._launch.plan.hosts import first_size, parse_hosts, usable_hosts
from tfcollective._launch.plan.placement import blocked_for
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.platforms import local
from tfcollective._launch.platforms.join import JoinedLauncher
from tfcollective._launch.platforms.local import LocalLauncher
from tfcollective._launch.running.job import Job


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_proc": 0}, "min_proc .*: expected 1 or more, got 0"),
        ({"min_proc": True}, "min_proc .*: expected 1 or more, got True"),
        ({"min_proc": 3}, r"min_proc \(--min-np\): the job starts with 2 ranks, fewer than the 3 it needs"),
        ({"min_proc": 1, "engine": "horovod"}, "engine .*: an elastic job needs the native engine, not horovod"),
        ({"min_proc": 1, "timeline": "t.json"}, "timeline .*: an elastic job has none"),
        ({"min_proc": 1, "emit_tf_config": True}, "emit_tf_config .*: a TF_CONFIG lists the ranks"),
        ({"min_proc": 1, "data_parallel": True}, r"data_parallel \(--data-parallel\): an elastic job cannot have it"),
        ({"max_proc": 3}, r"max_proc \(--max-np\): it is for an elastic job: say with min_proc \(--min-np\) how few"),
        ({"reset_limit": 0}, r"reset_limit \(--reset-limit\): it is for an elastic job"),
        ({"on_error": "replace"}, r"on_error \(--on-error\): it is for an elastic job"),
        ({"min_proc": 1, "on_error": "retry"}, "on_error .*: expected one of end, replace, got 'retry'"),
        ({"min_proc": 1, "max_proc": 1}, r"max_proc \(--max-np\): the job starts with 2 ranks, more than the 1"),
        ({"min_proc": 1, "slots": 1}, "slots .*: it is for a discovery script: give each host its slots"),
        ({"min_proc": 1, "reset_limit": -1}, "reset_limit .*: expected 0 or more, got -1"),
        (
            {"min_proc": 1, "cooldown_range": (0, 9)},
            "cooldown_range .*: expected 1 <= MIN <= MAX <= 3600 seconds, got 0",
        ),
        ({"min_proc": 1, "cooldown_range": (9, 8)}, "cooldown_range .*: expected .* got 9 and 8"),
        ({"min_proc": 1, "cooldown_range": (9,)}, "cooldown_range .*: expected two numbers of seconds"),
        (
            {"preemption_file": "/notice"},
            r"preemption_file .*: it is for an elastic job: say with min_proc \(--min-np\)",
        ),
        ({"preemption_command": ("true",)}, "preemption_command .*: it is for an elastic job"),
        ({"min_proc": 1, "preemption_command": "true"}, "preemption_command .*: expected a command and its arguments"),
        ({"min_proc": 1, "preemption_file": 1}, "preemption_file .*: expected a path, got 1"),
        ({"min_proc": 1, "elastic_timeout": 0}, "elastic_timeout .*: expected a number of seconds, above 0"),
    ],
)
def test_what_cannot_be_elastic_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        JobSpec(("x",), 2, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"discovery": ("x",)}, UnsupportedError, "discovery: YARN chooses the hosts"),
        ({"blacklist": ("a",)}, UnsupportedError, "blacklist: YARN chooses the hosts"),
        (
            {"max_proc": 3, "task_specs": {"chief": TaskSpec(1, 1)}, "tasks": (TaskKey("chief", 0),)},
            ConfigError,
            "max_proc: the job has no workers of which there could be more",
        ),
    ],
)
def test_what_an_elastic_job_on_yarn_cannot_have(options, error, message):
    with pytest.raises(error, match=message):
        YarnLauncher().plan(JobSpec(("x",), 1, min_proc=1, **options))


def test_the_workers_spec_may_set_the_minimum():
    specs = {"chief": TaskSpec(1, 1), "worker": TaskSpec(1, 1, instances=3, min_instances=1)}
    spec = JobSpec(("x",), 4, tasks=trainers_of(specs), task_specs=specs)
    assert (spec.min_proc, spec.bounds.smallest, spec.bounds.largest) == (2, 2, 4)
    assert replace(spec, restarts=1).bounds == spec.bounds
    with pytest.raises(ConfigError, match=r"min_proc .*: got 3, but min_instances of the workers asks for 2"):
        replace(spec, min_proc=3)


@pytest.mark.parametrize("options", [{"discovery": ("x",)}, {"blacklist": ("a",)}])
def test_joining_agents_exclude_other_host_sources(options):
    with pytest.raises(UnsupportedError, match="the hosts of this job are those whose agents join it"):
        JoinedLauncher().plan(JobSpec(("x",), 2, min_proc=1, platform={"agents": 2}, **options))


def test_a_minimum_makes_a_job_elastic():
    assert JobSpec(("x",), 4).bounds is None
    assert JobSpec(("x",), 4, min_proc=2, elastic_timeout=7.0, op_timeout=9.0).bounds == Bounds(2, 4, 4, 7.0, 9.0)


@pytest.mark.parametrize(
    ("options", "outlasts"),
    [
        ({}, False),
        ({"on_error": "replace"}, True),
        ({"horovod_compat": True}, True),
        ({"on_error": "end", "horovod_compat": True}, False),
    ],
)
def test_program_errors_end_a_job_by_default(options, outlasts):
    assert JobSpec(("x",), 2, min_proc=1, **options).rules == Rules(elastic=True, outlasts_errors=outlasts)
    assert JobSpec(("x",), 2, horovod_compat=True).rules == Rules()


def test_agents_judge_by_the_launchers_rules():
    spec = JobSpec(("x",), 2, min_proc=1, max_restarts=3, restarts=1)
    assert Job(spec, LocalLauncher().plan(spec)).agent_config(()).rules == spec.rules == Rules(elastic=True, restarts=2)


def test_a_job_grows_to_maximum_or_slots():
    assert JobSpec(("x",), 2, min_proc=1, max_proc=5, reset_limit=7).bounds == Bounds(1, 2, 5, 600.0, 300.0, 7)
    assert JobSpec(("x",), 2, min_proc=1, discovery=("x",)).bounds.largest > 1 << 20


def test_found_slots_are_used_to_the_maximum():
    spec = JobSpec(("x",), 2, min_proc=1, max_proc=4, discovery=("x",), tasks=(TaskKey("chief", 0), *workers(1)))
    found = spec.on(parse_hosts("a:3,b:3"))
    assert found.num_proc == 4
    assert [str(task) for task in found.world] == ["chief:0", "worker:0", "worker:1", "worker:2"]
    assert replace(spec, max_proc=None).on(parse_hosts("a:3,b:3")).num_proc == 6
    assert spec.on(parse_hosts("a:1")).num_proc == 2  # which does not fit, and is refused where hosts are shared out


@pytest.mark.parametrize(
    ("hosts", "options", "size"),
    [
        ("", {"num_proc": 2}, (2, None)),
        ("", {"num_proc": 2, "min_proc": 1, "max_proc": 4}, (2, 1)),
        ("", {"min_proc": 1, "max_proc": 4}, (4, 1)),
        ("a:2,b:2", {"num_proc": 2, "min_proc": 1}, (2, 1)),
        ("a:2,b:2", {"num_proc": 2, "min_proc": 1, "max_proc": 3}, (3, 1)),
        ("a:2,b:2", {"min_proc": 1, "max_proc": 9}, (4, 1)),
        ("a:2,b:2", {"min_proc": 1}, (4, 1)),
        ("", {"num_proc": 3, "discovery": ("x",)}, (3, 3)),
        ("", {"num_proc": 3, "min_proc": 2, "discovery": ("x",)}, (3, 2)),
        ("", {"min_proc": 2, "discovery": ("x",)}, (2, 2)),
    ],
)
def test_with_how_many_ranks_a_job_starts(hosts, options, size):
    given = {"num_proc": None, "min_proc": None, "max_proc": None, "discovery": (), **options}
    assert first_size(given.pop("num_proc"), hosts=parse_hosts(hosts) if hosts else (), **given) == size


def test_hosts_of_the_blacklist_are_not_used():
    assert usable_hosts(parse_hosts("a:2,b:2"), ["a"]) == parse_hosts("b:2")
    with pytest.raises(ConfigError, match="blacklist: all hosts of the job are on it"):
        usable_hosts(parse_hosts("a:2"), ["a"])


def test_a_script_may_name_other_hosts():
    with pytest.raises(ConfigError, match="use the launcher 'ssh'"):
        LocalLauncher().plan(JobSpec(("x",), 1, min_proc=1, discovery=("x",)))


def test_a_host_is_blocked_longer_each_time():
    assert [blocked_for(losses) for losses in (0, 1, 2, 3, 4, 20)] == [0.0, 0.0, 30.0, 60.0, 120.0, 3600.0]


def test_all_names_of_this_machine_are_one(monkeypatch):
    begun = []
    monkeypatch.setattr(local, "run_job_on", lambda provide, spec, plan, **options: begun.append((spec, plan)))
    LocalLauncher().run(JobSpec(("x",), 3, min_proc=1, hosts=parse_hosts("localhost:2,127.0.0.1:1")))
    [(spec, plan)] = begun
    assert (spec.hosts, plan.hosts) == ((), ("",))  # else its ranks are on no host of the job, and have to leave
