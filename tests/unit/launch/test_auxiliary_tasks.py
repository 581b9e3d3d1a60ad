"""Auxiliary tasks: which ones a job has, with which command, for how long. Pure."""

import sys
import threading

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.processes import program_of
from tfcollective._base.settings import Settings
from tfcollective._base.task_specs import TaskSpec, trainers_of
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Endpoint
from tfcollective._launch.nodes.live import Agents
from tfcollective._launch.plan.hosts import Host, share_out
from tfcollective._launch.plan.planner import describe, plan_hosts, plan_local
from tfcollective._launch.plan.rank_variables import tf_config
from tfcollective._launch.plan.spec import FunctionCall, JobSpec
from tfcollective._launch.running.job import AgentFailure

EVALUATOR, TENSORBOARD = TaskKey("evaluator", 0), TaskKey("tensorboard", 0)


def job(tensorboard=None, call=None, **fields):
    one = TaskSpec(512, 1)
    specs = {"chief": one, "worker": TaskSpec(512, 1, instances=2), "evaluator": one}
    if tensorboard is not None:
        specs["tensorboard"] = TaskSpec(512, 1, **tensorboard)
    tasks = trainers_of(specs)
    return JobSpec(("python", "a.py"), len(tasks), tasks=tasks, task_specs=specs, call=call, **fields)


def test_auxiliary_tasks_have_no_rank_and_take_none():
    plan = plan_local(job({"tb_model_dir": "/m"}), cores=3, environ={})
    assert [str(task) for task in plan.tasks] == ["chief:0", "worker:0", "worker:1"]
    assert [(str(one.task), one.rank, one.place) for one in plan.auxiliary_tasks] == [
        ("evaluator:0", -1, ""),
        ("tensorboard:0", -1, ""),
    ]
    evaluator = plan.auxiliary_tasks[0]
    settings = Settings.load(evaluator.env)
    assert (evaluator.argv, settings.task, settings.size) == (("python", "a.py"), EVALUATOR, 3)
    assert "evaluator:0 (outside the world)\n  command: python a.py" in describe(plan)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tb_model_dir": "/m n"}, ("--linger", "30", "--logdir", "/m n")),
        ({"tb_termination_timeout_seconds": 2.5}, ("--linger", "2.5", "--experiment-of", "chief:0")),
        (
            {"tb_model_dir": "/m", "tb_extra_args": "--bind_all"},
            ("--linger", "30", "--logdir", "/m", "--extra-args=--bind_all"),
        ),
    ],
)
def test_the_command_of_a_tensorboard(fields, words):
    (tensorboard,) = plan_local(job(fields, FunctionCall(b"", ())), cores=1, environ={}).auxiliary_tasks[1:]
    assert tensorboard.argv == (sys.executable, *program_of("tfcollective.auxiliary_tasks._tensorboard_task"), *words)


def test_a_tensorboard_without_a_directory_is_refused():
    with pytest.raises(ConfigError, match="task_specs: tensorboard: tb_model_dir: give it"):
        job({})


def test_auxiliary_tasks_stay_with_rank_0():
    spec = job({"tb_model_dir": "/m"})
    plan = plan_hosts(spec, share_out((Host("a", 1), Host("b", 2)), 3), {})
    assert [one.host for one in plan.auxiliary_tasks] == ["a", "a"]
    assert [str(one.task) for one in plan.on("a")] == ["chief:0", "evaluator:0", "tensorboard:0"]
    assert plan.auxiliary_tasks[0].place == "a"


def test_how_long_they_may_stay():
    fields = {"tb_model_dir": "/m", "tb_termination_timeout_seconds": 7}
    spec = job(fields, evaluator_grace=60.0, start_timeout=300.0)
    assert spec.limit_of(EVALUATOR) == 60.0
    assert spec.limit_of(TENSORBOARD) > 300 + 7
    with pytest.raises(ConfigError, match=r"evaluator_grace .*: expected a number of seconds, above 0, got 0"):
        job(evaluator_grace=0)


def test_only_the_evaluators_tf_config_lists_it():
    endpoints = {
        task: Endpoint("h", 1 + n) for n, task in enumerate([TaskKey("chief", 0), TaskKey("worker", 0), EVALUATOR])
    }
    assert "evaluator" not in tf_config(TaskKey("worker", 0), endpoints)
    assert '"evaluator": ["h:3"]' in tf_config(EVALUATOR, endpoints)


class Handle:
    """An agent that ends when it is stopped, or at once."""

    def __init__(self, failure=None, ends=True):
        self.failure, self.stopped = failure, threading.Event()
        if ends:
            self.stopped.set()

    def stop(self, number):
        self.stopped.set()

    def wait(self):
        assert self.stopped.wait(20)
        return self.failure


def test_an_auxiliary_agents_end_fails_no_job():
    training, side = Handle(ends=False), Handle(AgentFailure("its host is down", 1.0))
    agents = Agents([training], [side])
    failures = []
    waiting = threading.Thread(target=lambda: failures.append(agents.wait(lambda: False)))
    waiting.start()
    assert not training.stopped.wait(0.2)
    training.stop(2)
    waiting.join(20)
    assert failures == [None]


def test_agents_of_auxiliary_tasks_end_after_failures():
    side = Handle(ends=False)
    gone = AgentFailure("gone", 1.0)
    assert Agents([Handle(gone)], [side]).wait(lambda: False) is gone
    assert side.stopped.is_set()
