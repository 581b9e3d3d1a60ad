"""A loss that is a mean over what counts: what it counts, and what it does not go with. Weights are in the jobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
import tfcollective.tensorflow as tfc
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective.keras._global_batch import ShareWeight

pytestmark = pytest.mark.tensorflow
keras = tf.keras
KERAS_3 = hasattr(keras.optimizers.Optimizer, "apply")
IDS = np.array([[1, 2, 0], [3, 0, 0]], np.int32)
LABELS = np.array([[0, 1, 1], [1, -1, 0]], np.int32)


def counted(masked: bool, weights: Any = None, **options: Any) -> float:
    loss = tfk.GlobalMeanLoss(keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options))
    scores = keras.layers.Embedding(4, 2, mask_zero=masked)(IDS)
    loss(LABELS if "ignore_class" in options else np.abs(LABELS), scores, sample_weight=weights)
    return float(loss.count)


def test_what_is_not_masked_counts() -> None:
    assert counted(masked=False) == 6.0
    assert counted(masked=True) == 3.0
    assert counted(masked=False, ignore_class=-1) == 5.0
    assert counted(masked=False, weights=np.array([[2.0], [0.5]], np.float32)) == 6.0
    if KERAS_3:
        weights = np.array([[2.0, 1.0, 1.0], [0.5, 1.0, 1.0]], np.float32)
        assert counted(masked=True, weights=weights, reduction="mean_with_sample_weight") == 3.5


def compiled(loss: Any, **options: Any) -> Any:
    outputs = keras.layers.Embedding(4, 2, mask_zero=True)
    made = keras.Sequential([keras.layers.Input((3,), dtype="int32"), outputs, keras.layers.Dense(2)])
    made.compile(tfk.DistributedOptimizer(keras.optimizers.SGD(0.1), **options), loss)
    return made


def plain() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def test_ranks_tell_each_other_what_they_have_counted() -> None:
    results = []
    for loss in (plain(), tfk.GlobalMeanLoss(plain())):
        with fake_world() as ops:
            keras.utils.set_random_seed(1)
            made = compiled(loss)
            made.fit(IDS, np.abs(LABELS), verbose=0)
            made.evaluate(IDS, np.abs(LABELS), verbose=0)
        results.append(([w.tolist() for w in made.get_weights()], sum("/counted" in entry for entry in ops.ran)))
    (expected, none), (found, once) = results
    assert (none, once) == (0, 1)  # and not in evaluate, which ranks may call alone
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)  # all ranks have as many


def test_it_is_saved_with_the_loss_inside() -> None:
    made = keras.losses.deserialize(keras.losses.serialize(tfk.GlobalMeanLoss(plain())))
    assert type(made) is tfk.GlobalMeanLoss
    assert made.loss.get_config() == plain().get_config()


@pytest.mark.parametrize("loss", ["mse", keras.losses.MeanSquaredError(reduction="sum"), None])
def test_only_a_mean_will_do(loss: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="with a mean as its reduction"):
        tfk.GlobalMeanLoss(loss)


@pytest.mark.parametrize("options", [{"op": tfc.Sum}, {"backward_passes_per_step": 2}])
def test_what_it_does_not_go_with(options: dict[str, Any]) -> None:
    with fake_world():
        with pytest.raises(UnsupportedError, match="GlobalMeanLoss"):
            compiled(tfk.GlobalMeanLoss(plain()), **options).fit(IDS, np.abs(LABELS), verbose=0)
        with pytest.raises(UnsupportedError, match="leave out global_batch"):
            ShareWeight(compiled(tfk.GlobalMeanLoss(plain())))
