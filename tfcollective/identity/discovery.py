"""Asks the sources in their order of precedence: our launcher, else a process alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from tfcollective.errors import ConfigError
from tfcollective.identity import launcher, single
from tfcollective.identity.model import Identity
from tfcollective.identity.node import current_node_id
from tfcollective.settings import Settings, variable

__all__ = ["discover"]

_MAX_KEY_TEXT = 4096


def discover(settings: Settings, environ: Mapping[str, str]) -> Identity:
    """Who this process is.

    ``environ`` is a snapshot of the environment, for the sources that other systems write; our own launcher's
    values stand in ``settings``. Reads the key file. Raises ConfigError that names what is wrong.
    """
    del environ  # no foreign source is asked yet
    node = current_node_id(settings.node_id)
    if launcher.is_present(settings):
        return launcher.parse(settings, _read_key(settings), node)
    return single.identity(node)


def _read_key(settings: Settings) -> str:
    if settings.key_file is not None:
        return _read_key_file(settings.key_file)
    if settings.key_fd is not None:
        return _read_key_descriptor(settings.key_fd)
    raise ConfigError(f"no job key: neither {variable('key_file')} nor {variable('key_fd')} is set")


def _read_key_file(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{variable('key_file')}: cannot read the job key: {error}") from error
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o077:
            raise ConfigError(f"{path} can be read by others (mode {mode:o}): the job key needs mode 600")
        return os.read(descriptor, _MAX_KEY_TEXT).decode("ascii", "replace")
    finally:
        os.close(descriptor)


def _read_key_descriptor(descriptor: int) -> str:
    try:
        # At an offset, so that a second init() of the process reads it again.
        return os.pread(descriptor, _MAX_KEY_TEXT, 0).decode("ascii", "replace")
    except OSError as error:
        raise ConfigError(f"{variable('key_fd')}: cannot read the job key: {error}") from error
