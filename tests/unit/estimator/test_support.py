"""What is refused before anything is trained."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective.estimator import train_and_evaluate
from tfcollective.estimator._support import check_arguments

pytestmark = pytest.mark.tensorflow
HAS_ESTIMATORS = hasattr(tf, "estimator")


@pytest.mark.skipif(HAS_ESTIMATORS, reason="this TensorFlow has Estimators")
def test_without_estimators_the_version_is_named() -> None:
    with pytest.raises(UnsupportedError, match=rf"TensorFlow {tf.__version__} has no Estimators.*2\.15"):
        train_and_evaluate(object(), object(), object())


@pytest.mark.skipif(not HAS_ESTIMATORS, reason="this TensorFlow has no Estimators")
def test_wrong_arguments_are_named(tmp_path, monkeypatch) -> None:
    module = tf.estimator

    def estimator(**options):
        config = module.RunConfig(str(tmp_path), **options)
        return module.Estimator(lambda features, labels, mode: None, config=config)

    specs = module.TrainSpec(lambda: None, 1), module.EvalSpec(lambda: None)
    check_arguments(estimator(), *specs)
    with pytest.raises(InvalidArgumentError, match=r"estimator: expected a tf\.estimator\.Estimator, got 5"):
        check_arguments(5, *specs)
    with pytest.raises(InvalidArgumentError, match="eval_spec"):
        check_arguments(estimator(), specs[0], specs[0])
    with pytest.raises(UnsupportedError, match="train_distribute"):
        check_arguments(estimator(train_distribute=tf.distribute.MirroredStrategy(["CPU:0"])), *specs)
    cluster = '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    with pytest.raises(InvalidArgumentError, match=r"call tfcollective\.init\(\) before"):
        check_arguments(estimator(), *specs)
