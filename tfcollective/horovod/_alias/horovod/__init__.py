"""``import horovod`` under ``tfcollective run --horovod-compat``: :mod:`tfcollective.horovod` and its modules."""

from tfcollective import horovod as _home
from tfcollective.horovod import __version__ as __version__
from tfcollective.horovod import run as run

#: ``import horovod.tensorflow`` finds the modules of tfcollective.horovod.
__path__ = list(_home.__path__)
