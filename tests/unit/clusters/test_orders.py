"""Which calls a process of a cluster makes, and in which order several threads' calls are made; without processes."""

import sys

import pytest

from tfcollective import _cluster as clusters
from tfcollective._base import payload
from tfcollective._cluster import Call, numbers
from tfcollective._control.messages import Entry


class Client:
    """Has stored one order after the other."""

    closed = False

    def __init__(self, *entries):
        self.entries = list(entries)
        self.asked = []

    def wait(self, key, *, timeout, newer_than):
        self.asked.append(newer_than)
        return self.entries.pop(0)


def test_a_call_stored_twice_is_made_once():
    client = Client(Entry(1, 1), Entry(1, 2), None, Entry(2, 3), Entry(2, 5), Entry(None, 6))
    assert list(numbers(client)) == [1, 2, None]
    assert client.asked == [0, 1, 2, 2, 3, 5]


def test_a_later_process_begins_with_the_newest():
    assert next(numbers(Client(Entry(7, 9)))) == 7


@pytest.mark.parametrize("code", [None, 0, 3])
def test_a_function_that_exits_has_failed(code):
    """The process would end with exit code 0, and the caller would wait for its result forever."""
    stored = {}

    class Store:
        def get_blob(self, name, *, timeout):
            call = payload.dumps((sys.exit, (code,), {}), "sys.exit")
            return payload.dumps(Call(call, [], fresh=False), "it")

        def put_blob(self, name, data):
            stored[name] = payload.loads(data)

    clusters._make(Store(), 4, "worker:1", "n")
    assert list(stored) == ["result/4/worker:1"]
    assert stored["result/4/worker:1"].failure.type == "SystemExit"
