"""Which node is this? Not the host name: containers of one host may share that, and hosts may share a name."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tfcollective.errors import ConfigError

__all__ = ["current_node_id", "node_id"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")


def node_id(boot_id: str, network_namespace: int) -> str:
    """A short text that is equal for processes of one running kernel and one network namespace."""
    return hashlib.sha256(f"{boot_id.strip()}/{network_namespace}".encode()).hexdigest()[:16]


def current_node_id(override: str | None = None) -> str:
    """The id of the node that this process runs on, or ``override`` when given."""
    if override:
        return override
    try:
        return node_id(_BOOT_ID.read_text("ascii"), _NETWORK_NAMESPACE.stat().st_ino)
    except OSError as error:
        raise ConfigError(f"cannot tell which node this is ({error}): set TFCOLLECTIVE_NODE_ID") from error
