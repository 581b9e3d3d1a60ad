import pytest

from tfcollective._base.codec import decode, encode, from_document
from tfcollective._base.errors import ConfigError
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import SINGLE, Endpoint, Member, Placement, PortRange, World


def world(*nodes):
    return World(1, tuple(Member(TaskKey("worker", r), r, node, 100 + r, f"a{r}") for r, node in enumerate(nodes)))


@pytest.mark.parametrize("text", ["127.0.0.1:80", "host:1", "[::1]:65535"])
def test_endpoint_round_trip(text):
    assert str(Endpoint.parse(text)) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:0", "host:65536", "host:x", "::1:80", "[]:1"])
def test_other_endpoints_are_refused(text):
    with pytest.raises(ConfigError):
        Endpoint.parse(text)


def test_placement_on_one_node():
    assert world("a", "a", "a").placement(TaskKey("worker", 2)) == Placement(2, 3, 2, 3, 0, 1)
    assert world("a").placement(TaskKey("worker", 0)) == SINGLE


def test_placement_on_uneven_nodes_that_alternate():
    placements = [world("b", "a", "b", "a", "b").placement(TaskKey("worker", rank)) for rank in range(5)]
    assert [(p.local_rank, p.local_size) for p in placements] == [(0, 3), (0, 2), (1, 3), (1, 2), (2, 3)]
    # Node b comes first because rank 0 is there; only b has a third rank.
    assert [(p.cross_rank, p.cross_size) for p in placements] == [(0, 2), (1, 2), (0, 2), (1, 2), (0, 1)]


def test_world_round_trip():
    before = world("a", "b")
    assert decode(encode(before), World, "the world") == before


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({}, "generation"),
        ({"generation": 1}, "members"),
        ({"generation": 1, "members": [3]}, r"\$\.members\[0\]"),
        ({"generation": 1, "members": [{"task": {"type": "worker", "index": -1}}]}, r"\$\.members\[0\]\.task"),
    ],
)
def test_other_documents_are_no_worlds(document, what):
    with pytest.raises(ConfigError, match=f"the world cannot be read: .*{what}"):
        from_document(document, World, "the world")


def test_a_world_has_no_gaps():
    with pytest.raises(ValueError, match="rank order"):
        World(1, (Member(TaskKey("worker", 0), 1, "a", 1, ""),))


def test_unknown_member():
    with pytest.raises(KeyError):
        world("a").member(TaskKey("worker", 7))


def test_ranges_of_ports():
    ports = PortRange.parse(" 29500-29600 ")
    assert (ports, str(ports)) == (PortRange(29500, 29600), "29500-29600")
    assert PortRange.parse("5-5") == PortRange(5, 5)


@pytest.mark.parametrize(
    "text", ["", "29500", "a-b", "1-", "-1", "2-1", "0-5", "1-65536", "1-2-3", "1000000-2", "1.5-2"]
)
def test_what_is_no_range_of_ports(text):
    with pytest.raises(ConfigError, match=r"expected (LOW-HIGH|ports from 1 to 65535)"):
        PortRange.parse(text)
