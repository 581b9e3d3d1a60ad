"""Small questions that scripts written for Horovod ask."""

from __future__ import annotations

import tensorflow as tf

import tfcollective
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective.tensorflow import Average, Op, Sum


def num_rank_is_power_2(num_rank: int) -> bool:
    """True if `num_rank` is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Returns True; raises UnsupportedError if `num_rank` is no power of two."""
    if not num_rank_is_power_2(num_rank):
        raise UnsupportedError(f"Adasum: expected a power of two as the number of ranks, got {num_rank}")
    return True


def gpu_available(ext_base_name: str = "", verbose: bool = False) -> bool:
    """True if TensorFlow has a GPU. The arguments are Horovod's and without effect."""
    del ext_base_name, verbose
    return bool(tf.config.list_physical_devices("GPU"))


def handle_average_backwards_compatibility(op: Op | None, average: bool | None) -> Op:
    """Returns the reduction that the pair of arguments asks for; raises InvalidArgumentError if both are given."""
    tfcollective.size()  # as there: not before init()
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise InvalidArgumentError("op and average cannot be combined: give op")
    return Average if average else Sum
