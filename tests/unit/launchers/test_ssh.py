"""The command line of ssh, and the reading of a host's answer; without ssh."""

import json
import platform
import shlex
import shutil

import pytest
from tfcollective_launchers.ssh import (
    Answer,
    SshLauncher,
    Visitor,
    accepting_new_keys,
    diagnose,
    meeting_address,
    ssh_command,
)

from tfcollective._base.errors import ConfigError
from tfcollective._base.version import __version__
from tfcollective._launch.plan.hosts import parse_hosts
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.system.ssh import SshOptions

OPTIONS = SshOptions(python="/opt/py")


def test_the_command_asks_and_overrides_nothing():
    command = ssh_command("ann@h", SshOptions(), ["/opt/my python", "-m", "x"])
    assert command[:2] == ("ssh", "-T")
    assert "BatchMode=yes" in command
    assert "StrictHostKeyChecking" not in " ".join(command)
    assert command[-3:] == ("--", "ann@h", "'/opt/my python' -m x")
    assert shlex.split(command[-1]) == ["/opt/my python", "-m", "x"]


def test_what_the_user_says_of_ssh_comes_first():
    command = ssh_command("h", SshOptions(2222, "/k", ("-o", "BatchMode=no")), ["x"])
    assert command.index("BatchMode=no") < command.index("BatchMode=yes")
    assert command[command.index("-p") + 1] == "2222"
    assert command[command.index("-i") + 1] == "/k"


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
def test_new_keys_are_taken_where_ssh_asks(tmp_path):
    config = tmp_path / "config"
    config.write_text(
        "Host strict\n StrictHostKeyChecking yes\nHost loose\n StrictHostKeyChecking no\n"
        "Host new\n StrictHostKeyChecking accept-new\nHost *\n HashKnownHosts yes\n"
    )
    options = SshOptions(options=("-F", str(config)))
    found = accepting_new_keys(options, ["plain", "strict", "loose", "new", "ann@plain"])
    assert {host: one.options[2:] for host, one in found.items()} == {
        "plain": ("-o", "StrictHostKeyChecking=accept-new"),
        "strict": (),
        "loose": (),
        "new": (),
        "ann@plain": ("-o", "StrictHostKeyChecking=accept-new"),
    }
    stated = SshOptions(options=("-F", str(config), "-o", "StrictHostKeyChecking=yes"))
    assert accepting_new_keys(stated, ["plain"]) == {"plain": stated}
    broken = SshOptions(options=("-F", str(tmp_path / "none")))
    assert accepting_new_keys(broken, ["plain"]) == {"plain": broken}


@pytest.mark.parametrize("port", [0, 65536])
def test_ports_are_those_of_tcp(port):
    with pytest.raises(ConfigError, match=r"port \(-p\): expected"):
        SshOptions(port)


def said(**facts):
    good = {
        "python": platform.python_version(),
        "version": __version__,
        "ssh": "10.0.0.1 5 10.0.0.2 22",
    }
    good.update(facts)
    text = json.dumps({key: value for key, value in good.items() if value is not None})
    return Answer(0, f"welcome to this host\ntfcollective-preflight {text}\n", "")


def test_a_good_answer_among_other_words():
    assert diagnose("h", said(), OPTIONS) is None


@pytest.mark.parametrize(
    ("answer", "problem", "remedy"),
    [
        (said(python="3.9.1"), "/opt/py is Python 3.9.1 there", "--remote-python"),
        (
            said(missing="No module named 'tfcollective'"),
            "has no tfcollective there",
            f"pip install tfcollective=={__version__}",
        ),
        (said(version="0.0.1"), "tfcollective 0.0.1 is installed there", f"pip install tfcollective=={__version__}"),
        (said(directory="No such file: '/x'"), "the working directory is not there", "--cwd"),
        (Answer(None, "", ""), "no answer within", "ssh h true"),
        (Answer(127, "", "sh: /opt/py: not found"), "there is no /opt/py", "--remote-python"),
        (Answer(0, "tfcollective-preflight {\n", ""), "does not run as a Python does", "--remote-python"),
        (Answer(0, "hello", ""), "does not run as a Python does", "--remote-python"),
        (Answer(255, "", "ann@h: Permission denied (publickey)."), "ssh is refused", "ssh-copy-id h"),
        (
            Answer(255, "", "No ED25519 host key is known for h and you have requested strict checking."),
            "its host key is not known here",
            "ssh-keyscan h",
        ),
        (
            Answer(255, "", "Host key verification failed."),
            "host key is not the known one",
            "ssh-keygen -R h",
        ),
        (
            Answer(255, "", "connect to host h port 22: No route to host"),
            "cannot connect (connect to",
            "ssh h true",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_remedy(answer, problem, remedy):
    text = diagnose("h", answer, OPTIONS)
    assert problem in text
    assert remedy in text


INTERFACES = {"lo": ("127.0.0.1",), "eth7": ("10.0.0.1", "fd00::1"), "ib0": ("10.9.0.1",)}


def test_the_coordinator_listens_where_the_hosts_see_us():
    assert meeting_address([Visitor("h", "10.0.0.1")], INTERFACES, ()) == "10.0.0.1"


@pytest.mark.parametrize(
    ("wanted", "address"), [("ib0", "10.9.0.1"), ("10.9.0.0/16", "10.9.0.1"), ("fd00::/8", "fd00::1")]
)
def test_or_where_the_user_wants(wanted, address):
    assert meeting_address([Visitor("h", "10.0.0.1")], INTERFACES, (wanted,)) == address


def test_addresses_that_are_not_ours():
    with pytest.raises(ConfigError, match=r"h sees this machine as 192\.0\.2\.9, which no interface here has"):
        meeting_address([Visitor("h", "192.0.2.9")], INTERFACES, ())
    with pytest.raises(ConfigError, match=r"lies in eth0; there are: lo 127\.0\.0\.1; eth7"):
        meeting_address([], INTERFACES, ("eth0",))


def test_the_plan_follows_the_list_of_hosts(monkeypatch):
    monkeypatch.setenv("TF_X", "1")
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("TFCOLLECTIVE_TASK", "worker:9")
    monkeypatch.setenv("HOME_OF_SECRETS", "x")
    workers = SshLauncher().plan(JobSpec(("a",), 3, hosts=parse_hosts("z:2,a:2"))).workers
    assert [(w.rank, w.local_rank, w.host, w.place) for w in workers] == [
        (0, 0, "z", "z, slot 0"),
        (1, 1, "z", "z, slot 1"),
        (2, 0, "a", "a, slot 0"),
    ]
    env = workers[2].env
    assert (env["TF_X"], env["TFCOLLECTIVE_TASK"], env["TFCOLLECTIVE_SIZE"]) == ("1", "worker:2", "3")
    assert "TF_CONFIG" not in env
    assert "HOME_OF_SECRETS" not in env
    assert "TFCOLLECTIVE_BIND_HOST" not in env  # only the host knows


def test_horovods_variables_count_hosts():
    spec = JobSpec(("a",), 3, hosts=parse_hosts("z:2,a:1"), horovod_compat=True)
    names = ("RANK", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    found = [tuple(int(w.env[f"HOROVOD_{name}"]) for name in names) for w in SshLauncher().plan(spec).workers]
    assert found == [(0, 0, 2, 0, 2), (1, 1, 2, 0, 1), (2, 0, 1, 1, 2)]
