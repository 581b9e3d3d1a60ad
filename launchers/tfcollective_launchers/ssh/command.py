"""How ssh is called."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tfcollective.errors import ConfigError
from tfcollective.launch.system.ssh import ACCEPT_NEW, DEFAULTS, hosts_that_ask

__all__ = ["SshOptions", "accepting_new_keys", "ssh_command"]

_MAX_PORT = 65535
# The first value that ssh reads for an option counts, so the user's stand before these.
_DEFAULTS = (*DEFAULTS, "-o", "ServerAliveInterval=15")


@dataclass(frozen=True)
class SshOptions:
    """The platform's settings.

    Attributes:
        port: sshd's port; None: ssh's own choice.
        identity_file: the private key; None: ssh's own choice.
        options: more arguments of ssh, before ours.
        python: the interpreter on the other hosts.
    """

    port: int | None = None
    identity_file: str | None = None
    options: tuple[str, ...] = ()
    python: str = sys.executable

    @classmethod
    def from_platform(cls, platform: Mapping[str, object]) -> SshOptions:
        """Checks what a job says; ConfigError."""
        try:
            made = cls(**platform)  # type: ignore[arg-type]
        except TypeError as error:
            raise ConfigError(f"the launcher 'ssh' takes port, identity_file, options and python: {error}") from error
        if made.port is not None and not 0 < made.port <= _MAX_PORT:
            raise ConfigError(f"an ssh port is between 1 and {_MAX_PORT}, not {made.port}")
        return made


def accepting_new_keys(options: SshOptions, hosts: Collection[str]) -> dict[str, SshOptions]:
    """The options for each host: where ssh would ask whether a new host's key is right, it takes the key."""
    asking = hosts_that_ask(hosts, options.options)
    accepting = replace(options, options=(*options.options, *ACCEPT_NEW))
    return {host: accepting if host in asking else options for host in hosts}


def ssh_command(host: str, options: SshOptions, remote: Sequence[str]) -> tuple[str, ...]:
    """What runs the command ``remote`` on ``host``. Nothing in it is secret: everybody on both hosts can read it."""
    port = () if options.port is None else ("-p", str(options.port))
    identity = () if options.identity_file is None else ("-i", options.identity_file)
    return ("ssh", "-T", *options.options, *_DEFAULTS, *port, *identity, "--", host, shlex.join(remote))
