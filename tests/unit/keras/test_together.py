"""What ranks do together in ``fit`` besides reducing gradients: compare what they hold, and average statistics."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import FakeCommunicator, fake_world

import tfcollective.keras as tfk
from tfcollective import _runtime as runtime
from tfcollective._base.errors import UnsupportedError
from tfcollective._runtime.communicator import Average
from tfcollective.keras import _fit_checks as fit_checks
from tfcollective.keras import _together as together
from tfcollective.keras._fit_checks import FitPlan, advice, are_in_step, plan_of, validate_together
from tfcollective.keras._parallel.callbacks import StopTogether
from tfcollective.keras._parallel.division import Division
from tfcollective.keras._parallel.run import begin_at, run, running
from tfcollective.keras._replica_state import average_statistics, differing_state
from tfcollective.tensorflow._gradients import variable_key

pytestmark = pytest.mark.tensorflow
keras = tf.keras
X = np.arange(32, dtype=np.float32).reshape(16, 2)
Y = np.ones((16, 1), np.float32)
PLAN = FitPlan((0, 2, 4), None, None, None, (), (), None)
PARAMS = {"epochs": 2, "steps": 4}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_said", set())


def model(*layers: Any) -> Any:
    made = keras.Sequential([keras.layers.Input((2,)), *layers, keras.layers.Dense(1)])
    made.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    return made


def plan(*callbacks: Any, made: Any = None, **arguments: Any) -> FitPlan:
    with fake_world():
        return plan_of(made or model(), {"x": X, "y": Y, **arguments}, callbacks, PARAMS)


def data(x: Any, y: Any = None) -> str | None:
    return plan(x=x, y=y).data


def test_data_that_all_ranks_have_are_named() -> None:
    mine, other = plan(), plan(x=X[8:], y=Y[8:])
    (line,) = advice([mine, mine])
    assert line.startswith("fit: all 2 ranks have the same data")
    assert "TFCOLLECTIVE_FIT_CHECKS=0" in line
    assert advice([mine, other]) == []
    assert advice([plan(x=iter([])), plan(x=iter([]))]) == []  # which cannot be seen


def test_sparse_and_ragged_rows_are_not_compared() -> None:
    rows = tf.sparse.from_dense(np.eye(3)), tf.ragged.range(tf.range(3))
    assert [data(tf.data.Dataset.from_tensor_slices(one).batch(2)) for one in rows] == [None, None]


def test_datasets_are_the_same_if_nothing_divides_them() -> None:
    def pipeline(rows: Any, skip: int = 0, residue: int = 0) -> Any:
        made = tf.data.Dataset.from_tensor_slices((rows, rows)).filter(lambda x, _: x[0] % 4.0 == float(residue))
        return made.map(lambda x, y: (x, y)).skip(skip).shuffle(8).batch(4).prefetch(1)

    whole = tf.data.Dataset.from_tensor_slices((X, Y))
    assert data(pipeline(X)) == data(pipeline(X)) is not None
    for other in (pipeline(X[::2]), pipeline(X, skip=2), pipeline(X, residue=1)):
        assert data(pipeline(X)) != data(other)
    generated = tf.data.Dataset.from_generator(lambda: iter(X), output_signature=tf.TensorSpec((2,), tf.float32))
    drawn = whole.repeat().shuffle(8).batch(4)
    for unknown in (whole.shard(2, 0).batch(4), generated.batch(4), drawn):
        assert data(unknown) is None
    assert data(whole.repeat().shuffle(8, seed=1).batch(4)) is not None


def test_equal_seeds_of_random_models_are_named() -> None:
    plans = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        plans.append(replace(plan(made=model(keras.layers.Dropout(0.5))), data=None))
    (line,) = advice(plans[:2])
    assert "set_random_seed(seed + rank())" in line
    assert advice(plans[1:]) == []
    for quiet in (model(), model(keras.layers.Dropout(0.0), keras.layers.Reshape((1, 2)), keras.layers.LSTM(2))):
        assert plan(made=quiet).seeds is None


def test_other_vocabularies_are_named() -> None:
    def words(*known: str) -> FitPlan:
        lookup = keras.layers.StringLookup(name="words_3", vocabulary=list(known))
        return replace(plan(made=model(), x=None, y=None), tables=tuple(_tables_of(lookup)))

    (line,) = advice([words("a", "b"), words("b", "a")])
    assert line.startswith("fit: words: other vocabularies")
    assert advice([words("a"), words("a")]) == []


def _tables_of(layer: Any) -> Any:
    return fit_checks._tables(type("Model", (), {"_flatten_layers": lambda self, include_self: [layer]})())


def test_files_that_several_ranks_write_are_named(tmp_path: Path) -> None:
    kept, other = (keras.callbacks.ModelCheckpoint(str(tmp_path / name)) for name in ("a.keras", "b.keras"))
    log, board = keras.callbacks.CSVLogger(str(tmp_path / "log")), keras.callbacks.TensorBoard(str(tmp_path / "tb"))

    def files(*plans: FitPlan) -> list[str]:
        return advice([replace(one, data=None) for one in plans])

    (line,) = files(plan(kept, log, board), plan(kept, log, board))
    for name in ("ModelCheckpoint (", "a.keras)", "CSVLogger (", "TensorBoard ("):
        assert name in line
    assert files(plan(kept), plan(other)) == []
    assert files(plan(kept, log, board), plan()) == []
    best = tfk.BestModelCheckpoint(filepath=str(tmp_path / "a.keras"))
    assert files(plan(best), plan(best)) == []


def test_other_steps_are_named() -> None:
    (line,) = advice([PLAN, PLAN, replace(PLAN, schedule=(0, 2, 5))])
    assert line.startswith("fit: ranks differ: 4 batches in an epoch on rank 0, 5 batches in an epoch on rank 2: ")
    (line,) = advice([PLAN, replace(PLAN, schedule=(1, 2, 4))])
    assert "epochs 0 to 2 on rank 0, epochs 1 to 2 on rank 1" in line
    assert advice([PLAN, replace(PLAN, schedule=(0, 2, None))]) == []  # which is not known beforehand


def test_other_pipelines_are_named() -> None:
    (line,) = advice([replace(PLAN, elements=kind) for kind in ("float32 2-d", "float64 2-d")])
    assert line.startswith("fit: ranks differ: batches of float32 2-d on rank 0, batches of float64 2-d on rank 1: ")
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    sizes = [plan(x=rows.batch(size).prefetch(1), y=None, batch_size=None) for size in (4, 8)]
    assert [one.batch_size for one in sizes] == [4, 8]
    (line,) = advice([replace(one, data=None) for one in sizes])
    assert "batches of 4 rows on rank 0, batches of 8 rows on rank 1: gradients are averaged over the ranks" in line
    assert plan(x=rows.batch(4).unbatch(), y=None).batch_size is None
    assert plan(batch_size=8).batch_size == 8


def test_ranks_that_divide_batches_have_one_data() -> None:
    mine, other = plan(), plan(x=X[8:], y=Y[8:])
    (line,) = advice([mine, other], divides=True, slices=True)
    assert "ranks have different data" in line
    assert "auto_shard_dataset=False" in line
    assert advice([mine, mine], divides=True, slices=True) == advice([mine, other], divides=True) == []
    (line,) = advice([mine, mine], divides=True)
    assert "have the same data" in line


def test_copies_of_files_are_no_other_data() -> None:
    def paths(folder: str) -> FitPlan:
        made = plan(x=tf.data.Dataset.from_tensor_slices([f"{folder}/1.png", f"{folder}/2.png"]).batch(2), y=None)
        return replace(made, elements="rows of them")

    mine, other = paths("/tmp/a"), paths("/tmp/b")
    assert advice([mine, other], divides=True, slices=True) == []
    unseen = [replace(one, elements=None) for one in (mine, other)]
    assert len(advice(unseen, divides=True, slices=True)) == 1
    assert len(advice([mine, mine], divides=True)) == 1


def test_a_backup_that_ranks_share_is_named(tmp_path: Path) -> None:
    mine, other = (replace(plan(keras.callbacks.BackupAndRestore(str(tmp_path / name))), data=None) for name in "ab")
    without = replace(plan(), data=None)
    for plans in ([mine, without], [mine, mine]):
        (line,) = advice(plans)
        assert "tfcollective.keras.BackupAndRestore" in line
    assert advice([mine, other]) == advice([without, without]) == []


def test_when_ranks_are_in_step() -> None:
    assert are_in_step([PLAN, PLAN])
    assert not are_in_step([PLAN, replace(PLAN, schedule=(0, 2, 5))])
    validating = replace(PLAN, validation="1")
    assert validate_together([validating, validating])
    assert not validate_together([PLAN, PLAN])
    assert not validate_together([validating, PLAN])
    assert not validate_together([validating, replace(PLAN, validation="2")])


class OtherRank(FakeCommunicator):
    """A world of two, whose other rank's arrays are larger by 2. Notes what was called."""

    def __init__(self) -> None:
        super().__init__(2)
        self.called: list[str] = []

    def allreduce(self, array: Any, *, op: Any, name: str) -> Any:
        self.called.append(name)
        return array + 1 if op == Average else array

    def allgather(self, array: Any, *, name: str) -> Any:
        self.called.append(name)
        return np.concatenate([array, array + 2])

    def broadcast(self, array: Any, root: int = 0, **_options: Any) -> Any:
        return array + np.ones((), array.dtype)


class Codebook(keras.layers.Layer):
    """Has a weight that training moves without a gradient."""

    def build(self, shape: Any) -> None:
        self.codes = self.add_weight(name="codes", shape=(2,), initializer="ones", trainable=False)
        self.built = True

    def call(self, inputs: Any) -> Any:
        return inputs * 1.0


def fit_with(others: OtherRank, made: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[str]:
    """What is called in ``fit``, besides the exchange of objects at its start."""
    with fake_world(), monkeypatch.context() as patched:
        patched.setattr(runtime, "get_communicator", lambda _set=None: others)
        made.fit(X, Y, batch_size=8, verbose=0, **options)
    return others.called


def test_statistics_of_moving_layers_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = keras.layers.BatchNormalization(trainable=False)
    moving, own = keras.layers.BatchNormalization(), keras.layers.BatchNormalization()
    made = model(moving, frozen, own)
    local = frozenset(map(variable_key, (own.moving_mean, own.moving_variance)))
    with fake_world(), monkeypatch.context() as patched:
        patched.setattr(runtime, "get_communicator", lambda _set=None: OtherRank())
        average_statistics(made, None, local, "a test")
    assert tf.convert_to_tensor(moving.moving_mean).numpy().tolist() == [1.0, 1.0]
    assert tf.convert_to_tensor(moving.moving_variance).numpy().tolist() == [2.0, 2.0]
    for layer in (frozen, own):
        assert tf.convert_to_tensor(layer.moving_mean).numpy().tolist() == [0.0, 0.0]
    called = fit_with(OtherRank(), made, monkeypatch, epochs=2, validation_data=(X, Y), validation_freq=2)
    averages = [name for name in called if name.startswith("moving statistics")]
    assert averages == [f"moving statistics of {when}" for when in ("epoch 0", "this validation", "epoch 1")]
    called = fit_with(OtherRank(), model(), monkeypatch, validation_data=(X, Y))
    assert called == []  # the model has none


def test_what_else_differs_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    layer = Codebook()
    made = model(layer, keras.layers.BatchNormalization())
    with caplog.at_level(logging.WARNING, "tfcollective"):
        called = fit_with(OtherRank(), made, monkeypatch, epochs=4)
    assert [name for name in called if name in ("state of epoch 0", "state of epoch 1", "state of epoch 3")] == [
        "state of epoch 0",
        "state of epoch 3",
    ]
    (line,) = [record.message for record in caplog.records if "without gradients differ" in record.message]
    assert "codes" in line
    with fake_world(), monkeypatch.context() as patched:
        patched.setattr(runtime, "get_communicator", lambda _set=None: OtherRank())
        assert differing_state(made, None, frozenset(map(variable_key, made.weights)), "a test") == []


def test_advice_appears_once_or_is_silenced(caplog: pytest.LogCaptureFixture) -> None:
    for settings, count in (({"fit_checks": False}, 0), ({}, 1), ({}, 1)):
        with caplog.at_level(logging.WARNING, "tfcollective"), fake_world(**settings):
            model().fit(X, Y, verbose=0)
        assert sum("have the same data" in record.message for record in caplog.records) == count


def test_a_users_callback_list_gets_it_too() -> None:
    made = model(keras.layers.BatchNormalization())
    with fake_world():
        given = keras.callbacks.CallbackList(
            [keras.callbacks.Callback()], add_history=True, model=made, epochs=1, steps=1
        )
        made.fit(X, Y, verbose=0, callbacks=given)
        assert [type(one).__name__ for one in given.callbacks] == ["Callback", "History"]
        assert together.together(made, {"callbacks": None}, elastic=False) is not None
        alone = keras.Sequential([keras.layers.Dense(1)])
        alone.compile("sgd", "mse")
        assert together.together(alone, {"callbacks": None}, elastic=False) is None


@pytest.mark.skipif(not hasattr(keras, "distribution"), reason="Keras 2 has no stop_evaluating")
def test_stops_between_batches_of_one_call_are_refused() -> None:
    made = model()
    made.steps_per_execution, made.stop_evaluating = 2, True
    stop = StopTogether([])
    stop.set_model(made)
    with fake_world(), running(Division(0, 2)):
        begin_at(0)
        run.agrees = True
        with pytest.raises(UnsupportedError, match="steps_per_execution=2"):
            stop.on_test_batch_end(0)
        begin_at(0, 2)
        stop.on_test_batch_end(0)
