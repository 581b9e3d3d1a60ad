"""Real models, checkpoints of every kind, and events that TensorBoard can read."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

from tfcollective._base.errors import InvalidArgumentError
from tfcollective.auxiliary_tasks import (
    EvaluatorOptions,
    KerasEvaluation,
    announced_training,
    find_checkpoints,
    run_evaluator,
)
from tfcollective.auxiliary_tasks._checkpoints import NotWholeError

pytestmark = pytest.mark.tensorflow
keras = tf.keras
X, Y = np.ones((8, 3), np.float32), np.zeros((8, 1), np.float32)


def new_model() -> object:
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    made.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    return made


def save(model: object, directory: Path, kind: str, value: float, step: int) -> None:
    """Writes a checkpoint of a model whose loss is (3 * value)**2."""
    model.set_weights([np.full((3, 1), value, np.float32)])
    if kind == "keras":
        model.fit(X, Y, batch_size=8, verbose=0)  # counts a training step, changes nothing
        model.save(directory / f"epoch-{step}.keras")
    elif kind == "weights":
        if step == 2:
            model.fit(X, Y, batch_size=8, verbose=0)  # Keras 2 now saves metrics, too
        model.save_weights(directory / f"epoch-{step}.weights.h5")
    elif kind == "model":
        tf.train.Checkpoint(model=model).write(str(directory / f"ckpt-{step}"))
    else:
        tf.train.Checkpoint(model).write(str(directory / f"ckpt-{step}"))


def scalars(directory: Path) -> dict[tuple[str, int], float]:
    found = {}
    for path in directory.glob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found


@pytest.mark.parametrize("kind", ["keras", "weights"])
def test_incomplete_and_unusable_files_are_told_apart(tmp_path: Path, kind: str) -> None:
    save(new_model(), tmp_path, kind, 1.0, 1)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    evaluate = KerasEvaluation((X, Y), new_model())
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        (checkpoint,) = find_checkpoints(tmp_path)
        with pytest.raises(NotWholeError):
            evaluate(checkpoint)
    path.write_bytes(whole)
    (checkpoint,) = find_checkpoints(tmp_path)
    assert evaluate(checkpoint).metrics["loss"] == pytest.approx(9.0)
    path.unlink()
    with pytest.raises((OSError, ValueError)):  # gone: for the loop to see
        evaluate(checkpoint)


@pytest.mark.parametrize("kind", ["keras", "weights", "model", "root"])
def test_every_kind_is_evaluated_and_reported(tmp_path: Path, kind: str) -> None:
    model = new_model()
    with fake_world(size=1), announced_training(tmp_path):
        for step, value in ((1, 1.0), (2, 0.5), (3, 2.0)):
            save(model, tmp_path, kind, value, step)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    evaluate = KerasEvaluation(lambda: data, None if kind == "keras" else new_model())
    losses: list[float] = []
    result = run_evaluator(
        tmp_path,
        evaluate,
        EvaluatorOptions(poll_interval=0.01, best_metric="loss"),
        exporters=[lambda checkpoint, metrics: losses.append(metrics["loss"])],
    )
    np.testing.assert_allclose(losses, [9.0, 2.25, 36.0], rtol=1e-5)
    assert result.figures.nb_eval_steps == 12
    assert 0 < result.figures.eval_step_mean_duration < 5
    assert result.best is not None and result.best.step == 2
    events = scalars(tmp_path / "eval")
    assert events["loss", 3] == pytest.approx(36.0)
    assert set(events) == {(name, step) for name in result.metrics for step in (1, 2, 3)}


def test_the_state_of_the_optimizer_is_not_missed(tmp_path: Path) -> None:
    """Keras 3 warns that a model which has not trained skips it."""
    trained, fresh = new_model(), new_model()
    for model in (trained, fresh):
        model.compile(keras.optimizers.Adam(0.0), "mse")
    trained.fit(X, Y, verbose=0)
    save(trained, tmp_path, "weights", 1.0, 1)
    (checkpoint,) = find_checkpoints(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Skipping")
        assert KerasEvaluation((X, Y), fresh)(checkpoint).metrics["loss"] == pytest.approx(9.0)


def test_weights_without_a_model_are_refused(tmp_path: Path) -> None:
    save(new_model(), tmp_path, "weights", 1.0, 1)
    with pytest.raises(InvalidArgumentError, match="give a compiled and built model"):
        run_evaluator(tmp_path, KerasEvaluation((X, Y)), EvaluatorOptions(poll_interval=0.01))


def test_a_checkpoint_of_something_else_is_an_error(tmp_path: Path) -> None:
    tf.train.Checkpoint(other=tf.Variable(1.0)).write(str(tmp_path / "ckpt-1"))
    with pytest.raises(AssertionError):
        run_evaluator(tmp_path, KerasEvaluation((X, Y), new_model()), EvaluatorOptions(poll_interval=0.01))
