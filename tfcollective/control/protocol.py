"""What the coordinator and those who ask it have to agree on."""

from __future__ import annotations

import ipaddress

from tfcollective.tasks import TaskKey

__all__ = ["ENCRYPTED_ONLY", "HELLO_PATH", "MAX_BODY_BYTES", "NODES", "TRAINING_ENDED", "experiment_key", "is_loopback"]

MAX_BODY_BYTES = 4 << 20
HELLO_PATH = "/v1/hello"  # the greeting with which each connection begins
ENCRYPTED_ONLY = 426  # the status of its refusal where a connection without TLS comes from another host
NODES = "nodes"  # the key of the list of what enrolled nodes have said of themselves
TRAINING_ENDED = "training/ended"  # this key is there once rank 0's process has ended


def experiment_key(task: TaskKey) -> str:
    """The key under which a trainer says where its experiment writes: ``{"directory": path or null}``."""
    return f"experiment/{task}"


def is_loopback(address: str) -> bool:
    """Whether an address, not a name, is one of the loopback interface."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
