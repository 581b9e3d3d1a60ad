"""The identity that our own launchers write into a worker's environment."""

from __future__ import annotations

from tfcollective.errors import ConfigError
from tfcollective.identity.model import Identity
from tfcollective.settings import Settings, variable

__all__ = ["SOURCE", "is_present", "parse"]

SOURCE = "launcher"
_MIN_KEY_BYTES = 16


def is_present(settings: Settings) -> bool:
    """Whether a launcher started this process."""
    return settings.coordinator is not None


def parse(settings: Settings, key_text: str, node_id: str) -> Identity:
    """The identity in ``settings``; ``key_text`` is the job key in hexadecimal. Raises ConfigError."""
    if settings.coordinator is None or settings.task is None or settings.size is None or settings.job_id is None:
        needed = ("coordinator", "task", "size", "job_id")
        missing = ", ".join(variable(field) for field in needed if getattr(settings, field) is None)
        raise ConfigError(f"the launcher's environment is incomplete: {missing} not set")
    return Identity(
        task=settings.task,
        world_size=settings.size,
        coordinator=settings.coordinator,
        job_id=settings.job_id,
        key=_parse_key(key_text),
        source=SOURCE,
        node_id=node_id,
    )


def _parse_key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError as error:
        raise ConfigError("the job key is not hexadecimal") from error
    if len(key) < _MIN_KEY_BYTES:
        raise ConfigError(f"the job key has {len(key)} bytes; at least {_MIN_KEY_BYTES} are needed")
    return key
