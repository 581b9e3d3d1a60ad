"""Horovod's names, with its signatures and defaults: change ``import horovod.tensorflow as hvd`` to ``import
tfcollective.horovod.tensorflow as hvd``, or leave it and use ``tfcollective run --horovod-compat``.

Arguments without an effect here, such as ``device_dense``, are ignored. docs/from-horovod.md lists every name.
"""

from tfcollective import run as run

#: The release whose names and meanings these are.
__version__ = "0.28.1"
__all__ = ["__version__", "run"]
