"""Places TensorFlow's variables and ops on a second device, as they are on a machine with a GPU. It needs none: the
second device is the processor once more. With ``TFC_TESTS_SECOND_DEVICE=1`` pytest's process does so, and so do jobs.

Run as a program, ``second_device.py SCRIPT ARGUMENTS...``, it does so for a script.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TFC_TESTS_SECOND_DEVICE"
DEVICE = "CPU:1"


def asked_for(environment: Mapping[str, str]) -> bool:
    return environment.get(VARIABLE) == "1"


def use() -> None:
    """Before TensorFlow is used, in the thread that will use it: from then on its ops are on the second device, unless
    a scope of ``tf.device`` says otherwise."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.device(DEVICE).__enter__()


if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    use()
    runpy.run_path(sys.argv[0], run_name="__main__")
