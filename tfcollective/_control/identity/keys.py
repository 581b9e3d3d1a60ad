"""The job key: its place, and what to do if none is given."""

from __future__ import annotations

import os
import stat
from enum import Enum

from tfcollective._base.errors import ConfigError
from tfcollective._base.log import get_logger
from tfcollective._base.settings import Settings, variable
from tfcollective._control.identity.model import Identity

_MAX_KEY_TEXT = 4096
_MIN_KEY_BYTES = 16
_GROUP_READS = 0o040
_OTHERS = 0o037  # the permission bits that neither the group nor others may have
_LOG = get_logger(__name__)


class KeySource(str, Enum):
    """The source of the job key in a job without a launcher."""

    GIVEN = "given"  # in a file or in the environment
    USER = "user"  # this user's own, for ranks that are all on this machine
    NONE = "none"  # on request: everybody knows it


def key_source(identity: Identity, settings: Settings) -> KeySource:
    """Returns the source of the job key. Raises ConfigError, which says how to give one, if it is missing."""
    if identity.key is not None:
        return KeySource.GIVEN
    if settings.insecure:
        return KeySource.NONE
    if identity.on_loopback:
        return KeySource.USER
    raise ConfigError(
        f"the ranks meet at {identity.coordinator}, which others may reach, and there is no job key. Make one "
        f"(openssl rand -hex 32 > job.key; chmod 600 job.key) and let {variable('key_file')} name the file on every "
        f"rank, or put the text into {variable('key')} (on Kubernetes, from a Secret). In a network where you trust "
        f"everybody, {variable('insecure')}=1 does without"
    )


def read_key(settings: Settings) -> bytes | None:
    """The key that the settings name; None when they name none. Raises ConfigError when it cannot be used."""
    if settings.key_file is not None:
        return read_key_file(settings.key_file, variable("key_file"))
    if settings.key_fd is not None:
        return parse_key(_read_descriptor(settings.key_fd), variable("key_fd"))
    if settings.key is not None:
        return parse_key(settings.key, variable("key"))
    return None


def read_key_file(path: str, where: str) -> bytes:
    """The key in this file, which ``where`` names; ConfigError when it cannot be used."""
    return parse_key(_read_file(path, where), where)


def parse_key(text: str, where: str) -> bytes:
    """A key in hexadecimal; ConfigError when it is none, or too short to protect anything."""
    if len(text) > _MAX_KEY_TEXT:
        raise ConfigError(f"{where}: a job key has at most {_MAX_KEY_TEXT} characters")
    try:
        key = bytes.fromhex(text.strip())
    except ValueError as error:
        raise ConfigError(f"{where}: the job key is not hexadecimal") from error
    if len(key) < _MIN_KEY_BYTES:
        raise ConfigError(f"{where}: the job key has {len(key)} bytes; at least {_MIN_KEY_BYTES} are needed")
    return key


def _read_file(path: str, where: str) -> str:
    try:
        # Not waiting: opening a pipe without a writer would never return.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"{where}: cannot read the job key: {error}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{where}: {path} is not a file")
        _check_private(path, found)
        return os.read(descriptor, _MAX_KEY_TEXT + 1).decode("ascii", "replace")
    except OSError as error:
        raise ConfigError(f"{where}: cannot read the job key: {error}") from error
    finally:
        os.close(descriptor)


def _check_private(path: str, found: os.stat_result) -> None:
    """Raises ConfigError when others can read the file or may have written it. A group of this process may read a file
    of root's: that is how a Kubernetes Secret looks to a pod with fsGroup, whatever its defaultMode says. The group of
    a user's own file may be that of all users of a cluster."""
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"{path} belongs to the user {found.st_uid}, who may change it: the job key needs a file of yours or root's"
        )
    if not mode & (_OTHERS | _GROUP_READS):
        return
    if found.st_uid == 0 and not mode & _OTHERS and found.st_gid in (os.getegid(), *os.getgroups()):
        _LOG.info("%s can be read by the group %d, which this process is in (as with fsGroup)", path, found.st_gid)
        return
    raise ConfigError(
        f"{path} can be read by others (mode {mode:o}, group {found.st_gid}): the job key needs mode 600 or 400; "
        "640 or 440 will do for a file of root's with a group of this process, as a Kubernetes Secret with fsGroup"
    )


def _read_descriptor(descriptor: int) -> str:
    try:
        # At an offset, so that a second init() of the process reads it again.
        return os.pread(descriptor, _MAX_KEY_TEXT + 1, 0).decode("ascii", "replace")
    except OSError as error:
        raise ConfigError(f"{variable('key_fd')}: cannot read the job key: {error}") from error
