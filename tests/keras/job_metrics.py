"""Every metric of Keras: an evaluation by all ranks against one of each rank alone, of 1000 rows in batches of 32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfk

keras = tf.keras
ROWS = 1000
DRAWN = np.random.default_rng(5)
X = DRAWN.normal(size=(ROWS, 6)).astype(np.float32)
WEIGHTS = DRAWN.uniform(0.1, 2, size=ROWS).astype(np.float32)
CLASSES = DRAWN.integers(0, 4, size=ROWS)
TARGETS = {
    "binary": (X[:, :1] + DRAWN.normal(size=(ROWS, 1)) > 0).astype(np.float32),
    "one_hot": np.eye(4, dtype=np.float32)[CLASSES],
    "sparse": CLASSES.astype(np.int32)[:, np.newaxis],
    "numbers": np.abs(X[:, :3]) + 1,
}
# Class: arguments. What these count is whole numbers.
COUNTS: dict[str, dict[str, Any]] = {
    "binary": {
        "AUC": {},
        "Accuracy": {},
        "BinaryAccuracy": {},
        "BinaryIoU": {},
        "FalseNegatives": {},
        "FalsePositives": {},
        "Precision": {},
        "PrecisionAtRecall": {"recall": 0.5},
        "Recall": {},
        "RecallAtPrecision": {"precision": 0.6},
        "SensitivityAtSpecificity": {"specificity": 0.5},
        "SpecificityAtSensitivity": {"sensitivity": 0.5},
        "TrueNegatives": {},
        "TruePositives": {},
    },
    "one_hot": {
        "CategoricalAccuracy": {},
        "F1Score": {"average": "macro"},
        "FBetaScore": {"average": "weighted", "beta": 2.0},
        "OneHotIoU": {"num_classes": 4, "target_class_ids": [0, 2]},
        "OneHotMeanIoU": {"num_classes": 4},
        "TopKCategoricalAccuracy": {"k": 2},
    },
    "sparse": {
        "IoU": {"num_classes": 4, "target_class_ids": [1], "sparse_y_pred": False},
        "MeanIoU": {"num_classes": 4, "sparse_y_pred": False},
        "SparseCategoricalAccuracy": {},
        "SparseTopKCategoricalAccuracy": {"k": 2},
    },
}
# What these count is sums of other numbers: in float32 they round otherwise, in float64 by less than 1e-12.
SUMS: dict[str, dict[str, Any]] = {
    "binary": {"BinaryCrossentropy": {}, "Hinge": {}, "SquaredHinge": {}},
    "one_hot": {"CategoricalCrossentropy": {}, "CategoricalHinge": {}, "CosineSimilarity": {}, "KLDivergence": {}},
    "sparse": {"SparseCategoricalCrossentropy": {}},
    "numbers": {
        "ConcordanceCorrelation": {},
        "LogCoshError": {},
        "MeanAbsoluteError": {},
        "MeanAbsolutePercentageError": {},
        "MeanRelativeError": {"normalizer": [1.0, 2.0, 3.0]},
        "MeanSquaredError": {},
        "MeanSquaredLogarithmicError": {},
        "PearsonCorrelation": {},
        "Poisson": {},
        "R2Score": {},
        "RootMeanSquaredError": {},
    },
}


OF_VALUES: dict[str, dict[str, Any]] = {"numbers": {"Mean": {}, "MeanTensor": {"shape": (3,)}, "Sum": {}}}


class Counting(keras.Model):
    """Has metrics of values, which are not compared with predictions."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        made_twice = [*made(OF_VALUES)["numbers"], *made(OF_VALUES, "64", dtype="float64")["numbers"]]
        self.counts = [one for one in made_twice if not one.name.startswith("MeanTensor")]
        self.tensors = [one for one in made_twice if one.name.startswith("MeanTensor")]  # of rows of one shape

    def test_step(self, data: Any) -> Any:
        logs = super().test_step(data)
        values = data[1]["numbers"]
        for metric in self.counts:
            metric.update_state(values)
        for metric in self.tensors:
            metric.update_state(tf.reduce_sum(values, 0))
        return {**logs, **{metric.name: metric.result() for metric in (*self.counts, *self.tensors)}}


def made(kinds: dict[str, dict[str, Any]], ending: str = "", **more: Any) -> dict[str, list[Any]]:
    """Metrics for each output, without those that this version of Keras has not; numbers are taken as their weights."""
    return {
        output: [
            getattr(keras.metrics, kind)(name=f"{kind}{ending}", **arguments, **more)
            for kind, arguments in kinds.get(output, {}).items()
            if hasattr(keras.metrics, kind)
        ]
        for output in TARGETS
    }


def model() -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    sizes = {"binary": (1, "sigmoid"), "one_hot": (4, "softmax"), "sparse": (4, "softmax"), "numbers": (3, "softplus")}
    outputs = {name: keras.layers.Dense(*size, name=name)(inputs) for name, size in sizes.items()}
    built = Counting(inputs, outputs)
    wide = {
        output: {kind: given for kind, given in kinds.items() if kind != "R2Score"} for output, kinds in SUMS.items()
    }
    several = [made(COUNTS), made(SUMS), made(wide, "64", dtype="float64")]  # R2Score counts in float32 in any case
    metrics = {name: [one for each in several for one in each[name]] for name in TARGETS}
    loss = {name: "sparse_categorical_crossentropy" if name == "sparse" else "mse" for name in TARGETS}
    built.compile(loss=loss, metrics=metrics)
    return built


def differences(alone: dict[str, Any], together: dict[str, Any]) -> Iterator[str]:
    assert alone.keys() == together.keys()
    counts = {f"{output}_{kind}" for output, kinds in COUNTS.items() for kind in kinds}
    for name, one in alone.items():
        bound = 0.0 if name in counts else 1e-12 if name.endswith("64") else 1e-5
        worst = float(np.max(np.abs(np.asarray(together[name]) - one) / np.maximum(np.abs(one), 1e-30)))
        if not worst <= bound:
            yield f"{name}: {one} and {together[name]}, off by {worst:.1e}"


def main() -> None:
    tfk.init()
    evaluated = model()
    given = {"batch_size": 32, "verbose": 0, "return_dict": True}
    alone = evaluated.evaluate(X, TARGETS, **given)
    together = tfk.evaluate(evaluated, X, TARGETS, **given)
    lines = list(differences(alone, together))
    print(f"compared {len(alone)} metrics on rank {tfk.rank()}: {lines}", flush=True)
    raise SystemExit(len(lines))


if __name__ == "__main__":
    main()
