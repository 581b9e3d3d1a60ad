"""The identity that our own launchers write into a worker's environment."""

from __future__ import annotations

from tfcollective.errors import ConfigError
from tfcollective.identity.model import Identity
from tfcollective.settings import Settings, variable

__all__ = ["SOURCE", "is_present", "parse"]

SOURCE = "launcher"


def is_present(settings: Settings) -> bool:
    """Whether a launcher started this process."""
    return settings.coordinator is not None


def parse(settings: Settings, key: bytes | None, node_id: str) -> Identity:
    """The identity in ``settings``, with the job key. Raises ConfigError that names what is missing."""
    if settings.coordinator is None or settings.task is None or settings.size is None or settings.job_id is None:
        needed = ("coordinator", "task", "size", "job_id")
        missing = ", ".join(variable(field) for field in needed if getattr(settings, field) is None)
        raise ConfigError(f"the launcher's environment is incomplete: {missing} not set")
    if key is None:
        raise ConfigError(f"no job key: none of {variable('key_file')}, {variable('key_fd')}, {variable('key')} is set")
    return Identity(
        task=settings.task,
        world_size=settings.size,
        coordinator=settings.coordinator,
        job_id=settings.job_id,
        key=key,
        source=SOURCE,
        node_id=node_id,
    )
