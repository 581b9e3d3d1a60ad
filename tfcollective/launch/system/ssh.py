"""What every call of ssh says, and what the user's own settings of ssh say about keys of new hosts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

__all__ = ["ACCEPT_NEW", "DEFAULTS", "hosts_that_ask"]

#: Ask nothing of a person who may not be there, and do not wait for ever.
DEFAULTS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
#: Takes the key of a host that is not known yet; a key that has changed is refused all the same.
ACCEPT_NEW = ("-o", "StrictHostKeyChecking=accept-new")

_AT_ONCE = 32
_TIMEOUT_S = 10.0


def hosts_that_ask(hosts: Iterable[str], arguments: Sequence[str]) -> frozenset[str]:
    """The hosts for which ssh with these ``arguments`` would ask a person whether a new key is right.

    A job that starts cannot ask, so for these, and only these, the caller says :data:`ACCEPT_NEW`. Where the
    user's settings say ``yes``, ``no`` or ``accept-new`` they stand. ``ssh -G`` tells; it connects to nothing. A host
    about which it fails is not among them.
    """
    listed = tuple(hosts)
    if not listed:
        return frozenset()
    with ThreadPoolExecutor(min(len(listed), _AT_ONCE)) as pool:
        asks = pool.map(lambda host: _asks(host, arguments), listed)
        return frozenset(host for host, one in zip(listed, asks, strict=True) if one)


def _asks(host: str, arguments: Sequence[str]) -> bool:
    command = ["ssh", *arguments, "-G", "--", host]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "stricthostkeychecking ask" in done.stdout.lower().splitlines()
