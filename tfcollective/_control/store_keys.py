"""The keys of the store that the coordinator, launchers, agents and ranks agree on."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tfcollective._base.tasks import TaskKey

TRAINING_ENDED = "training/ended"  # set once rank 0's process has ended
MODULES = "modules"  # the blob with the names of the modules that a warm spare is to import, with commas
PENDING = "world/pending"  # the generation for which the members have to meet
_NODE = "node/"


def node_name(number: int) -> str:
    """The name under which the agent of the node with this number sends heartbeats."""
    return f"{_NODE}{number}"


def end_key(number: int) -> str:
    """The key under which that agent reports how it has ended."""
    return f"{_NODE}{number}/end"


def orders_key(number: int) -> str:
    """The key under which a node that the launcher has no pipe to finds its orders."""
    return f"{_NODE}{number}/orders"


def item_key(key: str, number: int) -> str:
    """Returns the key of item `number` (from 0) of an :class:`~tfcollective._control.client.channel.OrderQueue`: one
    key each, since a list of all would be sent again with each item, until it is too long for a message."""
    return f"{key}/{number}"


def node_of(text: str, form: Callable[[int], str]) -> int | None:
    """The number for which ``form``, one of the functions above, gives this text; None if there is none."""
    number = "".join(itertools.takewhile(str.isdecimal, text.removeprefix(_NODE)))
    return int(number) if number and text == form(int(number)) else None


def experiment_key(task: TaskKey) -> str:
    """The key under which a trainer says where its experiment writes: ``{"directory": path or null}``."""
    return f"experiment/{task}"
