"""The hosts that a script prints: how they are read, and what happens when it fails or hangs."""

import logging
from dataclasses import replace

import psutil
import pytest
from launching import until

from tfcollective._base.errors import ConfigError, LaunchError, RendezvousError
from tfcollective._base.processes import command_words
from tfcollective._base.timing import TIMING
from tfcollective._launch.elastic.discovery import HostDiscovery
from tfcollective._launch.plan.hosts import Host, parse_discovered

OFTEN = replace(TIMING, discovery=0.01)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("a:4\n\nb\n", (Host("a", 4), Host("b", 2))),
        (" a:1 \n[::1]:3\n[::2]\n", (Host("a"), Host("::1", 3), Host("::2", 2))),
        ("a:4\nb:1\na:3\n", (Host("b"), Host("a", 3))),
        ("a:0\nb:0\n", ()),
        ("localhost:1\n127.0.0.1:1", (Host("localhost"), Host("127.0.0.1"))),
        ("# up\na:4 # since noon\n\n", (Host("a", 4),)),
        ("\ufeffa:4\r\nb\r\n", (Host("a", 4), Host("b", 2))),
        ("a slots=4\nb slots=0\nc max-slots=3\n", (Host("a", 4), Host("c", 3))),
    ],
)
def test_hosts_stand_in_lines(text, hosts):
    assert parse_discovered(text, 2, "script") == hosts


@pytest.mark.parametrize(
    ("line", "slots", "message"),
    [
        ("a:b:c", 1, "script, line 2: expected HOST:SLOTS, got 'a:b:c'"),
        ("fd00::1:2", 1, r"script, line 2: write an IPv6 address in brackets: \[fd00::1\]:2"),
        ("a:x", 1, "script, line 2: slots: expected 0 or more, got 'x'"),
        ("-oProxyCommand=x", 1, "'-oProxyCommand=x' cannot be the name of a host"),
        ("2 hosts", 1, "unknown word 'hosts'"),
        ("a", None, "'a' has no number of slots: print HOST:SLOTS, or give --slots N"),
    ],
)
def test_other_lines_are_errors(line, slots, message):
    with pytest.raises(ConfigError, match=message):
        parse_discovered(f"ok:1\n{line}\n", slots, "script")


@pytest.fixture
def script(tmp_path):
    """Writes a shell script, whole at every time; its path."""

    def write(*lines):
        path, new = tmp_path / "hosts.sh", tmp_path / "new"
        new.write_text("\n".join(("#!/bin/sh", *lines)))
        new.chmod(0o755)
        new.replace(path)
        return str(path)

    return write


def test_the_first_call_says_what_is_wrong(script, tmp_path):
    with pytest.raises(LaunchError, match=r"discovery script .*/none cannot be run: No such file"):
        HostDiscovery([str(tmp_path / "none")]).wait_for(1, 0.0)
    with pytest.raises(LaunchError, match=r"failed with exit code 3\n  no route to the cloud$"):
        HostDiscovery([script("echo no route to the cloud >&2", "exit 3")]).wait_for(1, 0.0)
    with pytest.raises(LaunchError, match=r"line 1: slots: expected 0 or more, got 'many'"):
        HostDiscovery([script("echo a:many")]).wait_for(1, 0.0)


def test_the_start_waits_for_enough_slots(script, tmp_path, caplog):
    path = script("echo a:1", f"[ -e {tmp_path}/second ] && echo b:1", f"touch {tmp_path}/second")
    with caplog.at_level(logging.WARNING, "tfcollective"):
        assert HostDiscovery([path], limits=OFTEN).wait_for(2, 60.0) == (Host("a"), Host("b"))
    (waits,) = caplog.messages
    assert waits.startswith("the job needs 2 slots to start, and the discovery script ")
    assert waits.endswith(" names a:1: waiting for more, for at most 60 s (--elastic-timeout)")
    with pytest.raises(RendezvousError, match=r"needs 3 slots to start, and the .* named a:1, b:1 within 0\.05 s"):
        HostDiscovery([path], limits=OFTEN).wait_for(3, 0.05)


def test_a_script_without_interpreter_uses_the_shell(tmp_path):
    path = tmp_path / "hosts.sh"
    path.write_text('echo "$1":2\n')
    path.chmod(0o755)
    assert HostDiscovery([str(path), "a"]).ask() == (Host("a", 2),)


def test_a_pipeline_is_run_by_the_shell():
    assert HostDiscovery(command_words("printf 'a 1\\nb 0\\n' | grep 1 | tr ' ' :")).ask() == (Host("a"),)


def test_a_search_without_hosts_is_repeated(script, tmp_path, caplog):
    path = script(f"[ -e {tmp_path}/up ] && exec echo a:1", f"touch {tmp_path}/up", "exec grep up /dev/null")
    with caplog.at_level(logging.WARNING, "tfcollective"):
        assert HostDiscovery([path], limits=OFTEN).wait_for(1, 60.0) == (Host("a"),)
    assert "names no hosts: waiting for more" in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("./hosts.sh --zone 'a b'", ("./hosts.sh", "--zone", "a b")),
        ("cat up | sort", ("/bin/sh", "-c", "cat up | sort")),
        ("list --zone $ZONE", ("/bin/sh", "-c", "list --zone $ZONE")),
        ("", ()),
    ],
)
def test_shell_syntax_is_run_by_a_shell(text, words):
    assert command_words(text) == words


def test_a_program_named_like_shell_syntax_runs(tmp_path):
    program = tmp_path / "my(1)"
    program.touch()
    assert command_words(str(program)) == (str(program),)


def test_a_hanging_script_is_killed_with_descendants(script, tmp_path):
    path = script(f"sleep 1000 & echo $! > {tmp_path}/pid", "wait")
    with pytest.raises(LaunchError, match=r"took more than 0\.5 s and was killed"):
        HostDiscovery([path], limits=replace(OFTEN, discovery_call=0.5)).ask()
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_later_failure_keeps_the_known_hosts(script, caplog):
    caplog.set_level(logging.WARNING, logger="tfcollective")
    logging.getLogger("tfcollective").propagate = True
    lists = []
    path = script("echo a:1")
    with HostDiscovery([path], limits=OFTEN) as discovery:
        assert discovery.wait_for(1, 0.0) == (Host("a"),)
        discovery.follow(lists.append)
        script("exit 1")
        until(lambda: "failed with exit code 1" in caplog.text)
        assert discovery.hosts == (Host("a"),)
        script("echo b:2", "echo a:1")
        until(lambda: lists == [(Host("a"), Host("b", 2))])
    assert caplog.text.count("failed with exit code 1") == 1
    assert "works again" in caplog.text


def test_blacklisted_hosts_are_left_out(script):
    path = script('for host in "$@"; do echo $host; done')
    assert HostDiscovery([path, "a", "b", "c"], 3, ["b"]).ask() == (Host("a", 3), Host("c", 3))


def test_closing_ends_a_hanging_script(script, tmp_path):
    path = script(f"[ -e {tmp_path}/hang ] && touch {tmp_path}/hangs && sleep 1000", "echo a:1")
    with HostDiscovery([path], limits=OFTEN) as discovery:
        discovery.wait_for(1, 0.0)
        discovery.follow(lambda hosts: None)
        (tmp_path / "hang").touch()
        until(lambda: (tmp_path / "hangs").exists())
    assert not discovery._thread.is_alive()
