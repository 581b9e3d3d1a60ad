"""Gives the ops their kernels on GPUs, where TensorFlow sees GPUs."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from tfcollective._base.errors import ConfigError, UnsupportedError
from tfcollective._base.log import get_logger
from tfcollective._base.private_directory import cache_directory
from tfcollective._base.settings import Settings
from tfcollective._runtime.native_library import tf_gpu

_LOG = get_logger(__name__)


def load_where_needed(core: Path, settings: Settings) -> None:
    """Loads the kernels if TensorFlow sees a GPU; else, and with TFCOLLECTIVE_GPU_KERNELS=0, does nothing.

    Args:
        core: libtfcollective.so.
        settings: of this process.

    Raises:
        ConfigError: the kernels have to be compiled and cannot be, or do not load.
        UnsupportedError: the GPUs are not CUDA's.
    """
    if not settings.gpu_kernels or not tf.config.get_visible_devices("GPU"):
        return
    if not tf.test.is_built_with_cuda():
        raise UnsupportedError(
            "tfcollective has kernels for CUDA's GPUs only. Set TFCOLLECTIVE_GPU_KERNELS=0 on all ranks: then tensors "
            "travel through the host's memory."
        )
    path = _find(core, settings)
    try:
        tf.load_op_library(str(path))
    except (OSError, tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        raise ConfigError(f"cannot load the GPU kernels {path} into TensorFlow {tf.__version__}: {error}") from error


def _find(core: Path, settings: Settings) -> Path:
    tensorflow = tensorflow_folder()
    path = tf_gpu.prebuilt(tf.__version__)
    if path.exists() and set(tensorflow.flags) == set(tf_gpu.FLAGS):  # another build may have another interface
        return path
    path = tf_gpu.compiled(tensorflow, core, cache_directory(settings.cache_dir))
    if not path.exists():
        _LOG.warning("compiling the GPU kernels for TensorFlow %s into %s, this once", tf.__version__, path)
        tf_gpu.compile_kernels(tensorflow, core, path)
    return path


def tensorflow_folder() -> tf_gpu.TensorflowFolder:
    """The TensorFlow of this process, for a compiler."""
    flags = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    return tf_gpu.TensorflowFolder(tf.__version__, Path(tf.sysconfig.get_include()).parent, tuple(flags))
