"""Begins data parallelism in a script that has not asked for it; ``tfcollective.keras._start.sitecustomize`` imports
``tfcollective.keras`` for it.
"""

from __future__ import annotations

from tfcollective import _runtime as runtime
from tfcollective._base.settings import Settings, hide_data_parallel
from tfcollective.keras._parallel import mode
from tfcollective.keras._parallel.distribution import initialize


def start_if_asked() -> None:
    """With ``--data-parallel``, once a job's process: as if the script began with
    ``keras.distribution.initialize(); set_distribution(DataParallel())``.

    Raises:
        ConfigError, RendezvousError: see ``tfcollective.init``.
    """
    if not Settings.load().data_parallel:
        return
    hide_data_parallel()
    initialize()
    if runtime.task().is_trainer:
        mode.begin()
