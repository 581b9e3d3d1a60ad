"""Places TensorFlow's variables on a second device, as they are on a machine with a GPU. It needs none: the second
device is the processor once more. ``TFC_TESTS_DEVICE`` says how, in pytest's process and in those of jobs:

* ``scope``: whatever is not told otherwise is on the second device, as in a scope of ``tf.device("GPU:0")``;
* ``variables``: only the variables are, as where ops have no device of their own.

Run as a program, ``second_device.py SCRIPT ARGUMENTS...``, it does so for a script.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "TFC_TESTS_DEVICE"
DEVICE = "CPU:1"
_scope = contextlib.ExitStack()  # until the process ends


def asked_for(environment: Mapping[str, str]) -> bool:
    return bool(environment.get(VARIABLE))


def use() -> None:
    """Before TensorFlow is used, in the thread that will use it."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    ways = {"scope": lambda: tf.device(DEVICE), "variables": lambda: tf.variable_creator_scope(_on_second)}
    _scope.enter_context(ways[os.environ[VARIABLE]]())


def _on_second(create: Any, **arguments: Any) -> Any:
    import tensorflow as tf
    from tensorflow.python.eager import context

    with tf.init_scope(), tf.device(context.context().device_name or DEVICE):  # the device that was asked for counts
        return create(**arguments)


if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    use()
    runpy.run_path(sys.argv[0], run_name="__main__")
