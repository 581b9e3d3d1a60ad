"""Small questions that scripts written for Horovod ask."""

from __future__ import annotations

import tensorflow as tf

from tfcollective import runtime
from tfcollective.communicator import Op
from tfcollective.errors import UnsupportedError
from tfcollective.tensorflow.arguments import chosen_op


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether this is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """True; UnsupportedError if this is no power of two."""
    if not num_rank_is_power_2(num_rank):
        raise UnsupportedError(f"Adasum needs a power of two as the number of ranks, not {num_rank}")
    return True


def gpu_available(ext_base_name: str = "", verbose: bool = False) -> bool:
    """Whether TensorFlow has a GPU. The arguments are Horovod's and without effect."""
    del ext_base_name, verbose
    return bool(tf.config.list_physical_devices("GPU"))


def handle_average_backwards_compatibility(op: Op | None, average: bool | None) -> Op:
    """The reduction that the pair of arguments asks for; InvalidArgumentError if both are given."""
    runtime.size()  # as there: not before init()
    return chosen_op(average, op)
