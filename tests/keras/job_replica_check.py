"""Rank 1's weights are changed in the middle of ``fit``: what the replica check does about it. Runs on 2 ranks, which
compare their weights in every step."""

from __future__ import annotations

import logging

import numpy as np
import tensorflow as tf

import tfcollective.keras as tfk

tfk.init()
rank = tfk.rank()
keras = tf.keras
X = np.random.default_rng(5 + rank).normal(size=(96, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
WRONG_STEP = 5


class Lines(logging.Handler):
    """Keeps the warnings of this process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class ChangeRankOne(keras.callbacks.Callback):
    """Adds something to the last kernel of rank 1 after a step; a lot also to its optimizer's state."""

    def __init__(self, distance: float) -> None:
        super().__init__()
        self._distance = distance

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if rank == 1 and batch == WRONG_STEP:
            kernel, _ = self.model.layers[-1].trainable_weights
            kernel.assign_add(tf.fill(kernel.shape, self._distance))
            for variable in state_of(self.model)[1:] if self._distance >= 1 else ():
                variable.assign_add(tf.ones(variable.shape, variable.dtype))


def state_of(model: object) -> list:
    """The optimizer's variables, its count of steps first, whatever the version of Keras."""
    variables = model.optimizer.variables
    return list(variables() if callable(variables) else variables)


def trained(check: tfk.ReplicaCheck, optimizer: object, distance: float = 1.0) -> object:
    model = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(4, name="low"), keras.layers.Dense(1, name="high")]
    )
    model.compile(tfk.DistributedOptimizer(optimizer, replica_check=check), "mse")
    callbacks = [tfk.BroadcastGlobalVariablesCallback(0), ChangeRankOne(distance)]
    model.fit(X, Y, batch_size=8, epochs=1, verbose=0, shuffle=False, callbacks=callbacks)
    return model


def everyones(model: object) -> list[list]:
    """Of each rank the weights and the optimizer's state, as bytes."""
    mine = [tf.convert_to_tensor(one).numpy().tobytes() for one in (*model.weights, *state_of(model))]
    return tfk.allgather_object(mine)


def adam() -> object:
    return keras.optimizers.Adam(0.01)


def warned_of(call: object) -> tuple[object, list[str]]:
    handler = Lines()
    logger = logging.getLogger("tfcollective")
    logger.addHandler(handler)
    try:
        made = call()
    finally:
        logger.removeHandler(handler)
    return made, [line for line in handler.lines if "weights differ" in line]


def an_error_names_rank_variable_and_size() -> None:
    try:
        trained(tfk.ReplicaCheck(action="error"), adam())
    except tf.errors.InvalidArgumentError as error:
        text = str(error)
    else:
        raise AssertionError("no error")
    assert "high/kernel" in text, text
    assert "on ranks [1], by " in text, text
    assert "of the largest weight" in text, text


def a_warning_leaves_the_weights() -> None:
    model, lines = warned_of(lambda: trained(tfk.ReplicaCheck(action="warn"), adam()))
    mine, theirs = everyones(model)
    assert mine != theirs
    assert bool(lines) == (rank == 0), lines


def a_resync_makes_weights_and_state_equal(optimizer: object) -> None:
    model, lines = warned_of(lambda: trained(tfk.ReplicaCheck(action="resync"), optimizer))
    mine, theirs = everyones(model)
    assert mine == theirs
    assert len(lines) == (rank == 0), lines  # once: training went on equal
    assert all("go on with the weights and the optimizer's state of rank 0" in line for line in lines)


def what_is_tolerated_or_not_chosen_passes() -> None:
    for check in (tfk.ReplicaCheck(tolerance=0.5), tfk.ReplicaCheck(variables=["no_such_layer/*"])):
        _, lines = warned_of(lambda check=check: trained(check, keras.optimizers.SGD(0.0), 1e-3))
        assert not [line for line in lines if "differ in step" in line], lines


an_error_names_rank_variable_and_size()
a_warning_leaves_the_weights()
a_resync_makes_weights_and_state_equal(adam())
a_resync_makes_weights_and_state_equal(keras.optimizers.SGD(0.01, momentum=0.9))
if hasattr(keras.optimizers, "legacy") and hasattr(keras.optimizers.legacy.SGD, "get_slot"):
    a_resync_makes_weights_and_state_equal(keras.optimizers.legacy.SGD(0.01, momentum=0.9))
what_is_tolerated_or_not_chosen_passes()
tfk.shutdown()
