"""The arguments of every call of ssh, and the user's own ssh settings for keys of new hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tfcollective._base.errors import ConfigError
from tfcollective._base.processes import answer_of

#: Never prompt, and never wait without a limit.
DEFAULTS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
#: Takes the key of a host that is not known yet; a key that has changed is refused all the same.
ACCEPT_NEW = ("-o", "StrictHostKeyChecking=accept-new")

_AT_ONCE = 32
_TIMEOUT_S = 10.0
_MAX_PORT = 65535


@dataclass(frozen=True)
class SshOptions:
    """The options for reaching a job's hosts.

    Attributes:
        port: sshd's port; None: ssh's own choice.
        identity_file: the private key; None: ssh's own choice.
        options: more arguments of ssh, before ours: the first value that ssh reads for an option counts.
        python: the interpreter on the other hosts.
    """

    port: int | None = None
    identity_file: str | None = None
    options: tuple[str, ...] = ()
    python: str = sys.executable

    def __post_init__(self) -> None:
        if self.port is not None and not 0 < self.port <= _MAX_PORT:
            raise ConfigError(f"an ssh port is between 1 and {_MAX_PORT}, not {self.port}")

    @property
    def arguments(self) -> tuple[str, ...]:
        """Returns the user's choices as arguments of ssh."""
        port = () if self.port is None else ("-p", str(self.port))
        identity = () if self.identity_file is None else ("-i", self.identity_file)
        return (*self.options, *port, *identity)


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
    done = answer_of(["ssh", *arguments, "-G", "--", host], _TIMEOUT_S)
    return done is not None and "stricthostkeychecking ask" in done.stdout.lower().splitlines()
