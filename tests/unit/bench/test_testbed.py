"""Test beds of network namespaces: plans without root, and one real test bed with it."""

import os
import socket
import subprocess
import sys
import threading

import pytest
from one_testbed import needs_root, the_testbed
from time_limits import within

from tfcollective._base.errors import ConfigError, LaunchError
from tfcollective_bench import testbed
from tfcollective_bench.testbed import NetnsState, NetnsTestbed, down_commands, hosts_file, parse_rate, up_commands


@pytest.mark.parametrize(("text", "bits"), [("1gbit", 1e9), ("2.5gbit", 2.5e9), ("500mbit", 5e8), ("none", None)])
def test_rates(text, bits):
    assert parse_rate(text) == bits


@pytest.mark.parametrize("text", ["", "1", "gbit", "0gbit", "1Gbit/s", "-1gbit", "loopback"])
def test_rates_that_are_none(text):
    with pytest.raises(ConfigError, match="not a rate"):
        parse_rate(text)


@pytest.mark.parametrize("hosts", [0, 65])
def test_number_of_hosts(hosts):
    with pytest.raises(ConfigError, match=f"expected 1 to 64, got {hosts}"):
        NetnsTestbed(hosts, "1gbit")


def test_every_host_is_shaped_in_both_directions():
    shaped = [command for command in up_commands(NetnsTestbed(3, "1gbit")) if command[0] == "tc"]
    outside = [command for command in shaped if command[1] == "qdisc"]
    inside = [command for command in shaped if command[1] == "-n"]
    assert [command[4] for command in outside] == ["tfcbed1c", "tfcbed2c", "tfcbed3c"]
    assert [command[2] for command in inside] == ["tfcbed1", "tfcbed2", "tfcbed3"]
    assert all(command[command.index("rate") + 1] == "1gbit" for command in shaped)
    assert all(int(command[command.index("burst") + 1]) >= 64 << 10 for command in shaped)  # a segmented packet fits


def test_without_a_rate_nothing_is_shaped():
    assert not [command for command in up_commands(NetnsTestbed(2, "none")) if command[0] == "tc"]


def test_a_test_bed_is_marked_whole_last():
    assert up_commands(NetnsTestbed(2, "1gbit"))[-1] == ("ip", "link", "set", "tfcbed", "alias", "2 1gbit")


def test_down_removes_what_is_there_and_nothing_else():
    state = NetnsState(None, ("tfcbed1",), ("tfcbed", "tfcbed1c"), ())
    assert down_commands(state) == [
        ("ip", "link", "delete", "tfcbed1c"),
        ("ip", "netns", "delete", "tfcbed1"),
        ("ip", "link", "delete", "tfcbed"),
    ]
    assert down_commands(NetnsState(None, (), (), ())) == []


def test_hosts_find_each_other_by_name():
    lines = hosts_file(NetnsTestbed(2, "1gbit"), 2, "box").splitlines()
    assert "10.213.87.2 box" in lines
    assert "10.213.87.1 tfcbed1" in lines


@pytest.mark.parametrize(
    "arguments", [[], ["up"], ["up", "x", "1gbit"], ["exec", "1"], ["down", "now"], ["up", "0", "1gbit"]]
)
def test_wrong_usage(arguments, capsys):
    assert testbed.main(arguments) == 64
    assert capsys.readouterr().err


def test_without_root_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert testbed.main(["up", "2", "1gbit"]) == 1
    assert "need Linux and root" in capsys.readouterr().err


@pytest.fixture
def no_testbed():
    """A machine without a test bed: that of another program must not be taken away."""
    with the_testbed():
        yield
        testbed.down()


@needs_root
def test_a_test_bed_comes_carries_and_goes(no_testbed):
    with testbed.opened(NetnsTestbed(2, "1gbit")) as bed:
        assert testbed.current_state().testbed == bed
        testbed.up(bed)  # again: nothing happens
        listener = "import socket; s = socket.create_server(('0.0.0.0', 5001)); print('up', flush=True);"
        listener += " print(s.accept()[1][0])"
        with subprocess.Popen(
            ["ip", "netns", "exec", bed.namespaces[0], sys.executable, "-c", listener],
            stdout=subprocess.PIPE,
            text=True,
        ) as host:
            timer = threading.Timer(within(60), host.kill)
            timer.start()
            assert host.stdout.readline() == "up\n"
            with pytest.raises(LaunchError, match="in use"):
                testbed.up(NetnsTestbed(3, "1gbit"))
            connect = f"import socket; socket.create_connection(('{bed.addresses[0]}', 5001), 60)"
            subprocess.run(
                ["ip", "netns", "exec", bed.namespaces[1], sys.executable, "-c", connect],
                check=True,
                timeout=within(60),
            )
            assert host.stdout.read() == f"{bed.addresses[1]}\n"
            timer.cancel()
    assert testbed.current_state().empty


@needs_root
def test_one_program_at_a_time_has_the_testbed(no_testbed):
    bed = NetnsTestbed(1, "none")
    with testbed.opened(bed):
        for other in (bed, NetnsTestbed(2, "none")):
            with pytest.raises(LaunchError, match="in use by another program"), testbed.opened(other):
                pass
        with pytest.raises(LaunchError, match="in use by another program"):
            testbed.up(NetnsTestbed(2, "none"))
        assert testbed.current_state().testbed == bed
    with testbed.opened(NetnsTestbed(2, "none")) as free_again:
        assert testbed.current_state().testbed == free_again


@needs_root
def test_a_test_bed_in_use_is_refused(no_testbed):
    bed = NetnsTestbed(1, "none")
    testbed.up(bed)
    with subprocess.Popen(["ip", "netns", "exec", bed.namespaces[0], "sleep", "60"]) as theirs:
        while theirs.pid not in testbed.current_state().processes:
            assert theirs.poll() is None
        with pytest.raises(LaunchError, match=f"in use .processes {theirs.pid}"), testbed.opened(bed):
            pass
        assert theirs.poll() is None
        assert testbed.current_state().testbed == bed
        theirs.kill()
    testbed.down()


@needs_root
def test_down_ends_what_runs_in_the_testbed(no_testbed):
    bed = NetnsTestbed(1, "none")
    testbed.up(bed)
    sleeper = subprocess.Popen(["ip", "netns", "exec", bed.namespaces[0], "sleep", "60"])
    while sleeper.pid not in testbed.current_state().processes:
        assert sleeper.poll() is None
    reaper = threading.Thread(target=sleeper.wait)  # a zombie would still count
    reaper.start()
    testbed.down()
    reaper.join(within(20))
    assert sleeper.returncode == -15
    assert testbed.current_state().empty


@needs_root
def test_a_test_bed_that_fails_leaves_nothing(no_testbed, monkeypatch):
    commands = [*up_commands(NetnsTestbed(2, "1gbit"))[:-1], ("ip", "link", "set", "no-such-link", "up")]
    monkeypatch.setattr(testbed, "up_commands", lambda bed: commands)
    with pytest.raises(LaunchError, match="no-such-link"):
        testbed.up(NetnsTestbed(2, "1gbit"))
    assert testbed.current_state().empty
    assert not os.path.exists("/etc/netns/tfcbed1")
    assert "tfcbed" not in [name for _, name in socket.if_nameindex()]
