"""The identity of a process in its job: every source of it ends in one :class:`Identity` value."""

from __future__ import annotations

from tfcollective._control.identity.discovery import discover
from tfcollective._control.identity.keys import KeySource, key_source
from tfcollective._control.identity.model import Identity
from tfcollective._control.identity.node import current_node_id, node_id

__all__ = ["Identity", "KeySource", "current_node_id", "discover", "key_source", "node_id"]
