"""Who am I? Every source of a process's identity ends in one :class:`Identity` value."""

from __future__ import annotations

from tfcollective.identity.discovery import discover
from tfcollective.identity.keys import KeySource, key_source
from tfcollective.identity.model import Identity
from tfcollective.identity.node import current_node_id, node_id

__all__ = ["Identity", "KeySource", "current_node_id", "discover", "key_source", "node_id"]
