"""What the coordinator and its clients have to agree on."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from typing import Any

from tfcollective.tasks import TaskKey

MAX_BODY_BYTES = 4 << 20
HELLO_PATH = "/v1/hello"  # the greeting with which each connection begins
ENCRYPTED_ONLY = 426  # the status of its refusal where a connection without TLS comes from another host
NODES = "nodes"  # the key of the list of what enrolled nodes have said of themselves
TRAINING_ENDED = "training/ended"  # this key is there once rank 0's process has ended
# JSON has no NaN and no infinity: in what tasks publish they travel as text, and become numbers again.
_NUMBERS = {text: float(text) for text in ("NaN", "Infinity", "-Infinity")}


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


def write_published(info: Mapping[str, object]) -> dict[str, object]:
    """The same without numbers that JSON does not know. TypeError when it holds what JSON does not know otherwise."""
    said: dict[str, object] = json.loads(json.dumps(dict(info)), parse_constant=str)
    return said


def read_published(value: Any) -> Any:
    """What :func:`write_published` was given."""
    if isinstance(value, Mapping):
        return {name: read_published(one) for name, one in value.items()}
    if isinstance(value, list):
        return [read_published(one) for one in value]
    return _NUMBERS.get(value, value) if isinstance(value, str) else value
