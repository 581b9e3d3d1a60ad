"""Labs of network namespaces: plans without root, and one real lab with it."""

import os
import socket
import subprocess
import sys
import threading

import pytest
from one_lab import needs_root, the_lab
from patience import within

from tfcollective.errors import ConfigError, LaunchError
from tfcollective_bench import netlab
from tfcollective_bench.netlab import Lab, LabState, down_commands, hosts_file, parse_rate, up_commands


@pytest.mark.parametrize(("text", "bits"), [("1gbit", 1e9), ("2.5gbit", 2.5e9), ("500mbit", 5e8), ("none", None)])
def test_rates(text, bits):
    assert parse_rate(text) == bits


@pytest.mark.parametrize("text", ["", "1", "gbit", "0gbit", "1Gbit/s", "-1gbit", "loopback"])
def test_rates_that_are_none(text):
    with pytest.raises(ConfigError, match="not a rate"):
        parse_rate(text)


@pytest.mark.parametrize("hosts", [0, 65])
def test_number_of_hosts(hosts):
    with pytest.raises(ConfigError, match=f"not {hosts}"):
        Lab(hosts, "1gbit")


def test_every_host_is_shaped_in_both_directions():
    shaped = [command for command in up_commands(Lab(3, "1gbit")) if command[0] == "tc"]
    outside = [command for command in shaped if command[1] == "qdisc"]
    inside = [command for command in shaped if command[1] == "-n"]
    assert [command[4] for command in outside] == ["tfclab1c", "tfclab2c", "tfclab3c"]
    assert [command[2] for command in inside] == ["tfclab1", "tfclab2", "tfclab3"]
    assert all(command[command.index("rate") + 1] == "1gbit" for command in shaped)
    assert all(int(command[command.index("burst") + 1]) >= 64 << 10 for command in shaped)  # a segmented packet fits


def test_without_a_rate_nothing_is_shaped():
    assert not [command for command in up_commands(Lab(2, "none")) if command[0] == "tc"]


def test_a_lab_is_marked_as_whole_last_of_all():
    assert up_commands(Lab(2, "1gbit"))[-1] == ("ip", "link", "set", "tfclab", "alias", "2 1gbit")


def test_down_removes_what_is_there_and_nothing_else():
    state = LabState(None, ("tfclab1",), ("tfclab", "tfclab1c"), ())
    assert down_commands(state) == [
        ("ip", "link", "delete", "tfclab1c"),
        ("ip", "netns", "delete", "tfclab1"),
        ("ip", "link", "delete", "tfclab"),
    ]
    assert down_commands(LabState(None, (), (), ())) == []


def test_a_host_finds_itself_and_the_others_by_name():
    lines = hosts_file(Lab(2, "1gbit"), 2, "box").splitlines()
    assert "10.213.87.2 box" in lines
    assert "10.213.87.1 tfclab1" in lines


@pytest.mark.parametrize(
    "arguments", [[], ["up"], ["up", "x", "1gbit"], ["exec", "1"], ["down", "now"], ["up", "0", "1gbit"]]
)
def test_wrong_usage(arguments, capsys):
    assert netlab.main(arguments) == 64
    assert capsys.readouterr().err


def test_without_root_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert netlab.main(["up", "2", "1gbit"]) == 1
    assert "need Linux and root" in capsys.readouterr().err


@pytest.fixture
def no_lab():
    """A machine without a lab: somebody else's must not be taken away."""
    with the_lab():
        yield
        netlab.down()


@needs_root
def test_a_lab_comes_carries_and_goes(no_lab):
    with netlab.opened(Lab(2, "1gbit")) as lab:
        assert netlab.current_state().lab == lab
        netlab.up(lab)  # again: nothing happens
        listener = "import socket; s = socket.create_server(('0.0.0.0', 5001)); print('up', flush=True);"
        listener += " print(s.accept()[1][0])"
        with subprocess.Popen(
            ["ip", "netns", "exec", lab.namespaces[0], sys.executable, "-c", listener],
            stdout=subprocess.PIPE,
            text=True,
        ) as host:
            timer = threading.Timer(within(60), host.kill)
            timer.start()
            assert host.stdout.readline() == "up\n"
            with pytest.raises(LaunchError, match="in use"):
                netlab.up(Lab(3, "1gbit"))
            connect = f"import socket; socket.create_connection(('{lab.addresses[0]}', 5001), 60)"
            subprocess.run(
                ["ip", "netns", "exec", lab.namespaces[1], sys.executable, "-c", connect],
                check=True,
                timeout=within(60),
            )
            assert host.stdout.read() == f"{lab.addresses[1]}\n"
            timer.cancel()
    assert netlab.current_state().empty


@needs_root
def test_one_program_at_a_time_has_the_lab(no_lab):
    lab = Lab(1, "none")
    with netlab.opened(lab):
        for other in (lab, Lab(2, "none")):
            with pytest.raises(LaunchError, match="in use by another program"), netlab.opened(other):
                pass
        with pytest.raises(LaunchError, match="in use by another program"):
            netlab.up(Lab(2, "none"))
        assert netlab.current_state().lab == lab
    with netlab.opened(Lab(2, "none")) as free_again:
        assert netlab.current_state().lab == free_again


@needs_root
def test_a_lab_in_which_somebody_works_is_not_taken_for_ours(no_lab):
    lab = Lab(1, "none")
    netlab.up(lab)
    with subprocess.Popen(["ip", "netns", "exec", lab.namespaces[0], "sleep", "60"]) as theirs:
        while theirs.pid not in netlab.current_state().processes:
            assert theirs.poll() is None
        with pytest.raises(LaunchError, match=f"in use .processes {theirs.pid}"), netlab.opened(lab):
            pass
        assert theirs.poll() is None
        assert netlab.current_state().lab == lab
        theirs.kill()
    netlab.down()


@needs_root
def test_down_ends_what_runs_in_the_lab(no_lab):
    lab = Lab(1, "none")
    netlab.up(lab)
    sleeper = subprocess.Popen(["ip", "netns", "exec", lab.namespaces[0], "sleep", "60"])
    while sleeper.pid not in netlab.current_state().processes:
        assert sleeper.poll() is None
    reaper = threading.Thread(target=sleeper.wait)  # a zombie would still count
    reaper.start()
    netlab.down()
    reaper.join(within(20))
    assert sleeper.returncode == -15
    assert netlab.current_state().empty


@needs_root
def test_a_lab_that_cannot_be_built_leaves_nothing(no_lab, monkeypatch):
    commands = [*up_commands(Lab(2, "1gbit"))[:-1], ("ip", "link", "set", "no-such-link", "up")]
    monkeypatch.setattr(netlab, "up_commands", lambda lab: commands)
    with pytest.raises(LaunchError, match="no-such-link"):
        netlab.up(Lab(2, "1gbit"))
    assert netlab.current_state().empty
    assert not os.path.exists("/etc/netns/tfclab1")
    assert "tfclab" not in [name for _, name in socket.if_nameindex()]
