"""Which rank's callbacks write, when another rank may become rank 0."""

import pytest

tf = pytest.importorskip("tensorflow")

from tfcollective.keras import _rank_zero as rank_zero
from tfcollective.keras._rank_zero import RankZeroCallback


class Notes(tf.keras.callbacks.Callback):
    """Notes what it hears."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def on_train_begin(self, logs=None):
        self.heard.append("train")

    def on_epoch_begin(self, epoch, logs=None):
        self.heard.append(f"epoch {epoch}")

    def on_train_batch_end(self, batch, logs=None):
        self.heard.append(f"batch {batch}")

    def on_epoch_end(self, epoch, logs=None):
        self.heard.append(f"end {epoch}")


def train(callback, epochs, become, monkeypatch):
    """`become` is the (epoch, batch) before which this rank becomes rank 0."""
    rank = [1]
    monkeypatch.setattr(rank_zero.runtime, "rank", lambda: rank[0])
    for epoch in range(epochs):
        for batch in range(2):
            if (epoch, batch) == become:
                rank[0] = 0
            if epoch == batch == 0:
                callback.on_train_begin()
            if batch == 0:
                callback.on_epoch_begin(epoch)
            callback.on_train_batch_begin(batch)
            callback.on_train_batch_end(batch)
        callback.on_epoch_end(epoch)
    callback.on_train_end()


@pytest.mark.parametrize(
    ("become", "heard"),
    [
        ((0, 0), ["train", "epoch 0", "batch 0", "batch 1", "end 0", "epoch 1", "batch 0", "batch 1", "end 1"]),
        ((0, 1), ["train", "epoch 0", "batch 1", "end 0", "epoch 1", "batch 0", "batch 1", "end 1"]),
        ((1, 0), ["train", "epoch 1", "batch 0", "batch 1", "end 1"]),
        ((9, 0), []),
    ],
)
def test_becoming_rank_0_begins_its_training(become, heard, monkeypatch):
    notes = Notes()
    train(RankZeroCallback(notes), 2, become, monkeypatch)
    assert notes.heard == heard


@pytest.mark.parametrize("become", [(0, 0), (1, 0)])
def test_a_log_of_another_rank_is_continued(become, monkeypatch, tmp_path):
    log = tf.keras.callbacks.CSVLogger(str(tmp_path / "log"))
    monkeypatch.setattr(log, "on_train_begin", lambda logs=None: None)
    for name in ("on_epoch_end", "on_train_end"):
        monkeypatch.setattr(log, name, lambda *_: None)
    train(RankZeroCallback(log), 2, become, monkeypatch)
    assert log.append is (become == (1, 0))


def test_the_model_is_its_model_too():
    notes, model = Notes(), tf.keras.Sequential()
    callback = RankZeroCallback(notes)
    callback.set_model(model)
    callback.set_params({"epochs": 2})
    assert notes.model is model
    assert notes.params == {"epochs": 2}
