"""Agents that enrol with a real coordinator, without processes of their own."""

import platform

from time_limits import within

from tfcollective._base.codec import to_document
from tfcollective._base.version import __version__
from tfcollective._control.messages import Enroll
from tfcollective._control.store_keys import item_key, orders_key
from tfcollective._launch.nodes.provider import NodeFacts


def come(client, *names, **facts):
    """Enrolls a node for each name; their numbers."""
    said = {"version": __version__, "python": platform.python_version(), **facts}
    return [
        client.call(Enroll((name * 32)[:32], to_document(NodeFacts(name=name, host=name, **said)))).number
        for name in names
    ]


def refusal(client, number):
    """The order that releases a node."""
    return client.wait(item_key(orders_key(number), 0), timeout=within(20)).value


__all__ = ["come", "refusal"]
