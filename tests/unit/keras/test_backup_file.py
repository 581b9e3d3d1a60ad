"""The backup file: what is restored, and the errors for files that are not backups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
from tfcollective._base.errors import InvalidArgumentError
from tfcollective.keras._backup_file import Backup, Position, layout_of, read_backup, write_backup

pytestmark = pytest.mark.tensorflow
keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")


def test_every_type_and_shape_comes_back(tmp_path: Path) -> None:
    values = [np.ones((2, 3), np.float32), np.array(5, np.int64), np.zeros((0, 4), np.float16), np.array([True])]
    values.append(tf.constant([1.5, -2.0], tf.bfloat16).numpy())
    path = tmp_path / "deep" / "backup.npz"
    write_backup(path, Backup(Position(3, 4, 2), values, [[values[0]], []]))
    found = read_backup(path)
    assert found is not None
    assert found.position == Position(3, 4, 2)
    assert found.size == 2
    assert layout_of(found.shared) == layout_of(values)
    for got, expected in zip([*found.shared, *found.own[0]], [*values, values[0]], strict=True):
        np.testing.assert_array_equal(got, expected)
    assert [file.name for file in path.parent.iterdir()] == ["backup.npz"]


def test_an_unwritable_backup_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "backup.npz"
    write_backup(path, Backup(Position(1), [], [[]]))
    with pytest.raises(AttributeError):
        write_backup(path, Backup(Position(2), [object()], [[]]))
    found = read_backup(path)
    assert found is not None and found.position == Position(1)
    assert [file.name for file in tmp_path.iterdir()] == ["backup.npz"]


def test_none(tmp_path: Path) -> None:
    assert read_backup(tmp_path / "backup.npz") is None


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 cut off"])
def test_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "backup.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"backup\.npz cannot be used.*Delete it"):
        read_backup(path)


def test_an_unreadable_backup_is_not_called_damaged(tmp_path: Path, monkeypatch: Any) -> None:
    """A user who is shown "damaged" would delete it, and the job would not be started again."""
    fsspec = pytest.importorskip("fsspec")
    url = f"memory://away-{tmp_path.name}/backup.npz"
    write_backup(url, Backup(Position(1), [], [[]]))

    def away(*arguments: object, **options: object) -> None:
        raise ConnectionError("the name node does not answer")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "get_file", away)
    with pytest.raises(OSError, match=r"cannot read .*backup\.npz: the name node does not answer$"):
        read_backup(url)
    (tmp_path / "backup.npz").mkdir()
    with pytest.raises(IsADirectoryError):
        read_backup(tmp_path / "backup.npz")


@pytest.mark.parametrize(
    "backup", [Backup(Position(1, 2, 0), [], [[]]), Backup(Position(-1), [], [[]]), Backup(Position(1), [], [])]
)
def test_a_backup_that_contradicts_itself_is_refused(tmp_path: Path, backup: Backup) -> None:
    path = tmp_path / "backup.npz"
    write_backup(path, backup)
    with pytest.raises(InvalidArgumentError, match=r"backup\.npz cannot be used.*Delete it"):
        read_backup(path)


def test_a_backup_with_changed_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "backup.npz"
    write_backup(path, Backup(Position(1), [np.arange(4.0)], [[]]))
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            found = read_backup(path)
        except InvalidArgumentError:
            continue
        assert found is not None


def model(units: int = 1) -> object:
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(units)])
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made


X, Y = np.ones((8, 3), np.float32), np.zeros((8, 1), np.float32)


def test_a_backup_of_another_model_is_refused(tmp_path: Path) -> None:
    with fake_world(size=1):
        backup = tfk.BackupAndRestore(tmp_path, delete_checkpoint=False)
        model().fit(X, Y, verbose=0, callbacks=[backup])
        with pytest.raises(InvalidArgumentError, match=r"of another model.*\(3, 1\).*\(3, 2\)"):
            model(2).fit(X, Y, verbose=0, callbacks=[backup])


def test_a_model_without_variables_is_refused(tmp_path: Path) -> None:
    class Late(keras.Model):
        def build(self, shape: object = None) -> None:
            pass

    with fake_world(size=1):
        callback = tfk.BackupAndRestore(tmp_path)
        callback.set_model(Late())
        with pytest.raises(InvalidArgumentError, match="Input layer"):
            callback.on_train_begin()


def test_other_steps_per_execution_are_noticed(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if batch >= 4:
                raise Stop

    with fake_world(size=1):
        made = model()
        with pytest.raises(Stop):
            made.fit(X, Y, batch_size=1, verbose=0, callbacks=[Interrupt(), tfk.BackupAndRestore(tmp_path, 3)])
        other = model()
        other.compile("sgd", "mse", steps_per_execution=2)
        with pytest.raises(InvalidArgumentError, match="steps_per_execution"):
            other.fit(X, Y, batch_size=1, verbose=0, callbacks=[tfk.BackupAndRestore(tmp_path)])
        again = tfk.BackupAndRestore(tmp_path)
        made.fit(X, Y, batch_size=1, verbose=0, callbacks=[again])
        assert again.resumed_from == (0, 3)


@pytest.mark.parametrize("legacy", [False, True])
def test_accumulated_gradients_stay_with_their_rank(tmp_path: Path, legacy: bool) -> None:
    if legacy and KERAS_3:
        pytest.skip("Keras 3 has no legacy optimizers")

    def trained(*callbacks: object) -> list:
        made = model()
        made.set_weights([np.ones((3, 1)), np.zeros(1)])
        kind = keras.optimizers.legacy.SGD if legacy else keras.optimizers.SGD
        made.compile(tfk.DistributedOptimizer(kind(0.1), backward_passes_per_step=3), "mse")
        made.fit(X, Y, batch_size=1, shuffle=False, verbose=0, callbacks=list(callbacks))
        return made.get_weights()

    class Stop(Exception):
        pass

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if batch == 4:
                raise Stop

    with fake_world(size=1):
        expected = trained()
        with pytest.raises(Stop):
            trained(tfk.BackupAndRestore(tmp_path, 4), Interrupt())
        found = read_backup(tmp_path / "backup.npz")
        assert found is not None
        assert list(found.accumulated) == ["optimizer"]
        shapes = [value.shape for value in found.own[0][-found.accumulated["optimizer"] :]]
        assert shapes == ([] if KERAS_3 else [()]) + [(3, 1), (1,)]
        if KERAS_3:  # the optimizers of Keras 2 have a momentum, or none
            assert [value.shape for value in found.shared].count((3, 1)) == 1
        for weight, value in zip(trained(tfk.BackupAndRestore(tmp_path)), expected, strict=True):
            np.testing.assert_array_equal(weight, value)
        with pytest.raises(Stop):
            trained(tfk.BackupAndRestore(tmp_path, 4), Interrupt())
        other = model()
        other.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        with pytest.raises(InvalidArgumentError, match=r"another model or optimizer|does not accumulate"):
            other.fit(X, Y, batch_size=1, verbose=0, callbacks=[tfk.BackupAndRestore(tmp_path)])


@pytest.mark.parametrize("value", [0, -1, True, "batch", 1.5])
def test_a_wrong_frequency_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match="save_freq"):
        tfk.BackupAndRestore(tmp_path, value)


def test_a_backup_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    url = f"memory://backup-{tmp_path.name}/backup.npz"
    assert read_backup(url) is None
    for epoch in (1, 2):
        write_backup(url, Backup(Position(epoch), [np.ones(3, np.float32)], [[]]))
        found = read_backup(url)
        assert found is not None
        assert found.position == Position(epoch)
        np.testing.assert_array_equal(found.shared[0], np.ones(3, np.float32))
