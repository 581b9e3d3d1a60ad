"""The limit of open descriptors: a process with a connection to each rank or agent needs more than a shell gives."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Containers may allow 2**30, and programs that close every possible descriptor then take minutes to start.
_MOST = 1 << 20
_lock = threading.Lock()
_users = 0
_usual: int | None = None


def raise_limit() -> None:
    """Raises this process's soft limit to the hard one, for good."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _set(max(soft, min(hard, _MOST)) if resource.RLIM_INFINITY not in (soft, hard) else _MOST)


@contextmanager
def many_descriptors() -> Iterator[None]:
    """Raises the soft limit to the hard one while the context is open, and restores it afterwards. May be nested."""
    global _users, _usual
    with _lock:
        if _users == 0:
            _usual = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raise_limit()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _usual is not None:
                _set(_usual)
                _usual = None


def give_usual_limit(pid: int) -> None:
    """Gives a child that has just been started the soft limit that this process has without :func:`many_descriptors`:
    programs that use select() fail with descriptors above 1023, and count on a limit that keeps them below."""
    usual = _usual
    if usual is not None:
        with suppress(OSError, ValueError):  # it has ended, or gained privileges
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (usual, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _set(soft: int) -> None:
    with suppress(OSError, ValueError):  # a sandbox may refuse it
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
