import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.tasks import TaskKey, trainers, workers


def test_text_round_trip():
    assert str(TaskKey.parse("worker:3")) == "worker:3"
    assert TaskKey.parse("chief:0") == TaskKey("chief", 0)


@pytest.mark.parametrize(
    "text", ["worker", "worker:", ":1", "worker:-1", "worker:x", "Worker:1", "worker:1:2", "chief:1"]
)
def test_other_text_is_refused(text):
    with pytest.raises(ConfigError):
        TaskKey.parse(text)


def test_trainers_stand_in_rank_order():
    tasks = [TaskKey("worker", 10), TaskKey("evaluator", 0), TaskKey("worker", 2), TaskKey("chief", 0)]
    assert [str(task) for task in trainers(tasks)] == ["chief:0", "worker:2", "worker:10"]
    assert not TaskKey("evaluator", 0).is_trainer


def test_workers():
    assert workers(2) == (TaskKey("worker", 0), TaskKey("worker", 1))
