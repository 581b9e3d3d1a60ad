"""The ranks of the job in which a benchmark runs, or one alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tfcollective import _runtime as runtime
from tfcollective._base.settings import Settings
from tfcollective._runtime.communicator import Communicator, CommunicatorOptions, NativeCommunicator

__all__ = ["device_world"]


@contextmanager
def device_world() -> Iterator[Communicator]:
    """The job's world where this process is a rank of a job, else a world of one with the settings for GPUs."""
    settings = Settings.load()
    if settings.size is None:
        alone = CommunicatorOptions(
            nccl=settings.nccl, cuda_driver=settings.cuda_driver, share_gpus=settings.share_gpus
        )
        with NativeCommunicator.alone(options=alone) as world:
            yield world
        return
    runtime.init()
    try:
        yield runtime.get_communicator()
    finally:
        runtime.shutdown()
