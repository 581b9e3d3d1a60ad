"""Lists of hosts, and how ranks are dealt to them."""

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._launch.plan.hosts import Host, parse_hostfile, parse_hosts, share_out


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("host1:4,host2:2", [("host1", 4), ("host2", 2)]),
        ("b:1,a:1", [("b", 1), ("a", 1)]),
        ("localhost", [("localhost", 1)]),
        ("node[01-03]:8", [("node01", 8), ("node02", 8), ("node03", 8)]),
        ("n[1,3-4]-ib:2,gpu.example.org:1", [("n1-ib", 2), ("n3-ib", 2), ("n4-ib", 2), ("gpu.example.org", 1)]),
        ("[::1]:2,[fe80:0::1]", [("::1", 2), ("fe80::1", 1)]),
        ("ann@10.0.0.7:3", [("ann@10.0.0.7", 3)]),
        (" a:1 , b:2 ", [("a", 1), ("b", 2)]),
        ("a,b,a,[::1],[::1]", [("a", 2), ("b", 1), ("::1", 2)]),
    ],
)
def test_lists(text, hosts):
    assert [(host.name, host.slots) for host in parse_hosts(text)] == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a list of hosts"),
        ("a:1,,b:1", "is not a list of hosts"),
        ("a:0", "expected 1 or more, got '0'"),
        ("a:x", "expected 1 or more, got 'x'"),
        ("a:", "expected 1 or more, got ''"),
        ("a:1,b:1,a:2", "a stands there twice"),
        ("a,a:2", "a stands there twice"),
        ("a:2,a", "a stands there twice"),
        ("n[1-3]:1,n2:1", "n2 stands there twice"),
        ("::1:2", r"in brackets: \[::1\]:2"),
        ("fe80::1:2:cafe", r"in brackets: \[fe80::1:2:cafe\]:SLOTS"),
        ("a:22:2", "expected HOST:SLOTS, got 'a:22:2'; the port of ssh is --ssh-port's"),
        ("a:2,", "nothing follows the last comma"),
        ("[fe80::zz]:1", "no IPv6 address"),
        ("n[3-1]", "ends before it begins"),
        ("n[a-b]", "'a-b' is not a range"),
        ("n[1-3:4", "is not a list of hosts"),
        ("-oProxyCommand=x:1", "cannot be the name"),
        ("a b:1", "separate the hosts by commas: a,b:1"),
        ("a:2 b:1", "separate the hosts by commas: a:2,b:1"),
        ("a:2;b:1", "separate the hosts by commas: a:2,b:1"),
        ("a:2; b:1;", "separate the hosts by commas: a:2,b:1"),
    ],
)
def test_what_is_no_list(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_hosts(text)


def test_hostfiles():
    text = """
    # the left rack
    a slots=4          # with a comment
    b:2
    c
    d slots=2 max-slots=8
    e max_slots=3
    [::1] slots=5
    n[1-2] slots=6
    f slots = 2
    g:3,h
    p
    q
    p
    """
    assert [(host.name, host.slots) for host in parse_hostfile(text, "hosts")] == [
        *(("a", 4), ("b", 2), ("c", 1), ("d", 2), ("e", 3), ("::1", 5), ("n1", 6), ("n2", 6)),
        *(("f", 2), ("g", 3), ("h", 1), ("p", 2), ("q", 1)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "names no host"),
        ("a slots=4\nb cores=2\n", "file, line 2: unknown word 'cores=2'"),
        ("a slots=x", "line 1: slots: expected 1 or more, got 'x'"),
        ("a slots=9 max-slots=8", "slots=9 is more than max-slots=8"),
        ("a:2 slots=3", "has a number of slots already"),
        ("[::1]:2 slots=3", "has a number of slots already"),
        ("a\n\na slots=2", "a stands there twice"),
        ("a 4", "unknown word '4'"),
        ("a:1, b:1", "unknown word 'b:1': write one host a line"),
        ("a slots=0", "slots: expected 1 or more, got '0'"),
    ],
)
def test_what_is_no_hostfile(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_hostfile(text, "file")


def shares(text, num_proc):
    return [(share.host.name, share.first, share.count) for share in share_out(parse_hosts(text), num_proc)]


def test_ranks_follow_the_list_of_hosts_always():
    assert shares("z:2,a:2", 4) == [("z", 0, 2), ("a", 2, 2)]
    assert shares("z:2,a:2", 3) == [("z", 0, 2), ("a", 2, 1)]


def test_exactly_as_many_as_asked_for():
    assert shares("localhost:4", 2) == [("localhost", 0, 2)]
    assert shares("a:4,b:4", 2) == [("a", 0, 2)]


def test_all_slots_by_default():
    assert shares("a:4,b:3", None) == [("a", 0, 4), ("b", 4, 3)]


def test_more_processes_than_slots():
    with pytest.raises(ConfigError, match=r"5 processes do not fit into the 4 slots of a:2, \[::1\]:2"):
        share_out([Host("a", 2), Host("::1", 2)], 5)
