"""A provider without a platform: it records requests and returns the events that a test gives it."""

import platform

from time_limits import within

from tfcollective._base.codec import to_document
from tfcollective._base.version import __version__
from tfcollective._control.messages import Enroll
from tfcollective._control.store_keys import item_key, orders_key
from tfcollective._launch.nodes.provider import NodeFacts, NodeProvider


class FakeProvider(NodeProvider):
    """``how`` is what it says of nodes that do not answer; other arguments are attributes of a provider's."""

    advice = ""

    def __init__(self, *, how=None, pipes=False, **attributes):
        self.requested, self.released, self.lines, self.happens, self.closed = [], [], [], [], False
        self._how, self._pipes = how, pipes
        for name, value in attributes.items():
            assert hasattr(NodeProvider, name)
            setattr(self, name, value)

    def request(self, nodes):
        self.requested += nodes

    def release(self, name):
        self.released.append(name)

    def close(self):
        self.closed = True

    def events(self):
        happened, self.happens = self.happens, []
        return happened

    def explain(self, node, silent):
        return self._how

    def orders(self, name):
        return self.lines.append if self._pipes else None


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


__all__ = ["FakeProvider", "come", "refusal"]
