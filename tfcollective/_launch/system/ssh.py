"""The arguments of every call of ssh, and the user's own ssh settings for keys of new hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tfcollective._base import shared_options
from tfcollective._base.options import LINE, WORDS, Options, count, hosting
from tfcollective._base.processes import answer_of

#: Never prompt, and never wait without a limit.
DEFAULTS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
#: Takes the key of a host that is not known yet; a key that has changed is refused all the same.
ACCEPT_NEW = ("-o", "StrictHostKeyChecking=accept-new")

_AT_ONCE = 32
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class SshOptions(Options):
    """The options for reaching a job's hosts."""

    port: int | None = hosting(
        count(1, 65535, "the highest port"),
        "Port of sshd on the hosts.",
        "-p --ssh-port",
        metavar="PORT",
        default="ssh's own choice",
    )
    identity_file: str | None = hosting(
        LINE, "Private key for ssh.", "-i --ssh-identity-file", metavar="F", default="ssh's own choice"
    )
    options: tuple[str, ...] = hosting(
        WORDS,
        "Further arguments for ssh, quoted as one.",
        "--ssh-options",
        (),
        more='They stand before ours, and so count: `"-F cluster.conf -o ProxyJump=gate"`.',
    )
    python: str = shared_options.remote_python(value=sys.executable)

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
