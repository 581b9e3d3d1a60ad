"""The command line of mpirun, and the plan for the ranks that it reports; without mpirun."""

import sys

import pytest
from launching import until
from tfcollective_launchers.mpi import MpiLauncher, MpiOptions, MpirunProvider, check_flavour, mpirun_command, placed

from tfcollective._base.errors import ConfigError
from tfcollective._control.identity.mpi import open_mpi_place
from tfcollective._launch.api import run
from tfcollective._launch.nodes.provider import NodeFacts, NodeSettings
from tfcollective._launch.plan.hosts import parse_hosts
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.platforms.local import LocalLauncher
from tfcollective._launch.restarts import run_job

AGENT = ("python", "agent")
GRACE_S = 12.5


def command(hosts="", num_proc=2, environ=None, **options):
    listed = parse_hosts(hosts) if hosts else ()
    return mpirun_command(listed, num_proc, MpiOptions(**options), AGENT, environ or {}, GRACE_S)


def after(words, word):
    return words[words.index(word) + 1]


def test_ranks_of_this_machine_need_no_ssh():
    words = command(num_proc=3)
    assert words[0] == "mpirun"
    assert (after(words, "-np"), after(words, "--host")) == ("3", "localhost:3")
    assert "plm_rsh_args" not in words
    assert words[-2:] == AGENT


def test_hosts_and_ssh():
    words = command("a:2,b:4", 5, port=2222, identity_file="/k", options=("-o", "StrictHostKeyChecking=yes"))
    assert after(words, "--host") == "a:2,b:4"
    ssh = after(words, "plm_rsh_args")
    assert ssh.startswith("-o StrictHostKeyChecking=yes -p 2222 -i /k ")
    assert "BatchMode=yes" in ssh


def test_a_word_with_a_space_cannot_reach_ssh():
    with pytest.raises(ConfigError, match="'/my key'"):
        command("a:1", 1, identity_file="/my key")


def test_the_key_is_named_and_not_shown():
    words = command(environ={"TFCOLLECTIVE_KEY": "secret", "PYTHONPATH": "/p", "HOME": "/h"})
    handed_on = [words[place + 1] for place, word in enumerate(words) if word == "-x"]
    assert handed_on == ["TFCOLLECTIVE_KEY", "PYTHONPATH"]
    assert "secret" not in " ".join(words)


def test_more_arguments_stand_after_ours():
    options = MpiOptions.of({"args": "--mca btl 'self,tcp'"})
    words = mpirun_command((), 1, options, AGENT, {}, GRACE_S)
    assert words[-5:] == ("--mca", "btl", "self,tcp", *AGENT)


def test_another_mpirun_is_refused_with_advice():
    check_flavour("mpirun (Open MPI) 4.1.4\n")
    with pytest.raises(ConfigError, match=r"HYDRA build details.*TFCOLLECTIVE_ENGINE=mpi mpirun -np N"):
        check_flavour("HYDRA build details:\n  Version: 4.1\n")


def facts(*hosts):
    return [NodeFacts(host, "same", host, "1", "3.11.2", "python", rank=n, number=n) for n, host in enumerate(hosts)]


def test_ranks_are_where_mpi_has_put_them():
    spec = JobSpec(("x",), 3, engine="mpi", hosts=parse_hosts("a:2,b:2"))
    plan = placed(MpiLauncher().plan(spec), facts("b", "a", "b"), {"RANK": "x"}, named=True)
    assert [worker.place for worker in plan.workers] == ["same, slot 0", "same, slot 0", "same, slot 1"]
    assert [worker.rank for worker in plan.workers] == [0, 1, 2]
    words = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    assert [[worker.env[word] for word in words] for worker in plan.workers] == [
        ["3", "0", "2"],
        ["3", "0", "1"],
        ["3", "1", "2"],
    ]


def test_what_mpirun_cannot_start():
    with pytest.raises(ConfigError, match="TF_CONFIG"):
        MpiLauncher().plan(JobSpec(("x",), 2, engine="mpi", emit_tf_config=True))


def test_engine_and_launcher_go_together():
    with pytest.raises(ConfigError, match="go together"):
        run_job(LocalLauncher(), JobSpec(("x",), 2, engine="mpi"))
    with pytest.raises(ConfigError, match="go together"):
        run(print, np=1, launcher="mpi")


def test_the_place_that_open_mpi_gives():
    environ = {"RANK": "5", "LOCAL_RANK": "1", "LOCAL_SIZE": "4"}
    environ = {f"OMPI_COMM_WORLD_{name}": value for name, value in environ.items()}
    assert open_mpi_place(environ) == (5, 1, 4)
    with pytest.raises(ConfigError, match="has not started this process"):
        open_mpi_place({})


def test_agents_of_nested_jobs_get_own_keys(monkeypatch):
    monkeypatch.setenv("TFCOLLECTIVE_KEY_FILE", "/the/outer/job's")
    read = (sys.executable, "-c", _READ_KEY)
    with MpirunProvider(lambda coordinator: read, lambda: False) as provider:
        provider.request([NodeSettings("10.0.0.1:5", "ab" * 16, "")])
        found = []
        until(lambda: found.extend(provider.events()) or found)
    assert found[0].how == "has ended with code 0"


_READ_KEY = """
from tfcollective._control.identity.keys import read_key
from tfcollective._base.settings import Settings
assert read_key(Settings.load()) == bytes.fromhex("ab" * 16)
"""


def test_the_end_of_mpirun_ends_all_agents():
    asked = []

    def command(coordinator):
        asked.append(coordinator)
        return ("sh", "-c", "test $TFCOLLECTIVE_KEY = abab && exit 3")

    with MpirunProvider(command, lambda: True) as provider:
        provider.request([NodeSettings("10.0.0.1:5", "abab", "")] * 2)
        found = []
        until(lambda: found.extend(provider.events()) or found)
        assert provider.events() == ()
    assert asked == ["10.0.0.1:5"]
    (event,) = found
    assert (event.name, event.how) == ("", "has ended with code 3")
    assert [provider.subject(NodeFacts(host=host)) for host in ("", "h")] == ["mpirun", "mpirun (agent on h)"]
