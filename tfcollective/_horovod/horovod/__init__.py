"""tfcollective under Horovod's name: what ``tfcollective run --horovod-compat`` puts before everything else on the
path of the ranks, so that a script that says ``import horovod.tensorflow as hvd`` runs as it is."""

from tfcollective import run  # noqa: F401

#: The release whose names and meanings these are.
__version__ = "0.28.1"
