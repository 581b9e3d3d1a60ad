"""How ssh is called: pure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfcollective.errors import ConfigError

__all__ = ["SshOptions", "ssh_command"]

_MAX_PORT = 65535
# The first value that ssh reads for an option counts, so the user's stand before these.
_DEFAULTS = ("BatchMode=yes", "StrictHostKeyChecking=accept-new", "ConnectTimeout=10", "ServerAliveInterval=15")


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


def ssh_command(host: str, options: SshOptions, remote: Sequence[str]) -> tuple[str, ...]:
    """What runs the command ``remote`` on ``host``. Nothing in it is secret: everybody on both hosts can read it."""
    port = () if options.port is None else ("-p", str(options.port))
    identity = () if options.identity_file is None else ("-i", options.identity_file)
    defaults = [word for option in _DEFAULTS for word in ("-o", option)]
    return ("ssh", "-T", *options.options, *defaults, *port, *identity, "--", host, shlex.join(remote))
