"""Agents that the launcher has not started: how they are asked for, and how ranks are dealt to them."""

import os

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._launch.nodes.provider import NodeFacts, NodeSettings
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.platforms.join import JoinedLauncher, JoinProvider, deal_to, elastic_assignment, given_key


def dealt(num_proc, *slots):
    names = [f"n{index}" for index in range(len(slots))]
    return [(share.host.name, share.first, share.count) for share in deal_to(names, slots, JobSpec(("x",), num_proc))]


def test_evenly_when_no_agent_says_how_many():
    assert dealt(4, None, None) == [("n0", 0, 2), ("n1", 2, 2)]
    assert dealt(3, None, None) == [("n0", 0, 2), ("n1", 2, 1)]
    assert dealt(1, None, None) == [("n0", 0, 1)]


def test_what_an_agent_says_counts():
    assert dealt(5, 1, None) == [("n0", 0, 1), ("n1", 1, 4)]
    assert dealt(2, 4, 4) == [("n0", 0, 2)]
    assert dealt(4, 4, None) == [("n0", 0, 4)]


def test_agents_that_take_too_few():
    with pytest.raises(ConfigError, match="5 processes do not fit"):
        dealt(5, 2, 2)


def test_the_line_that_starts_agents_names_no_key(tmp_path, capsys):
    path = tmp_path / "key"
    with JoinProvider(str(path)) as provider:
        provider.request([NodeSettings("10.0.0.1:5", "ab" * 32, "")] * 2)
        assert path.read_text() == "ab" * 32
    assert not path.exists()
    said = capsys.readouterr().err
    assert f"run this on each of 2 hosts, where {path} has to be readable" in said
    assert f"tfcollective agent --join 10.0.0.1:5 --key-file {path}" in said
    assert "abab" not in said


def test_the_key_of_the_next_job_stays(tmp_path):
    path = tmp_path / "key"
    with JoinProvider(str(path)) as provider, JoinProvider(str(path)) as following:
        provider.request([NodeSettings("10.0.0.1:5", "ab" * 32, "")])
        following.request([NodeSettings("10.0.0.1:6", "cd" * 32, "")])
        provider.close()
        assert path.read_text() == "cd" * 32
    assert not path.exists()


def test_the_key_is_private_and_goes_away(tmp_path):
    path = tmp_path / "key"
    path.write_text("old")
    os.chmod(path, 0o644)
    with JoinProvider(str(path)) as provider:
        provider.request([NodeSettings("10.0.0.1:5", "ab" * 32, "")])
        assert path.read_text() == "ab" * 32
        assert path.stat().st_mode & 0o777 == 0o600
        assert list(tmp_path.iterdir()) == [path]
    assert not path.exists()
    with JoinProvider(str(tmp_path / "no" / "key")) as provider, pytest.raises(ConfigError, match="cannot be put into"):
        provider.request([NodeSettings("10.0.0.1:5", "ab" * 32, "")])


def test_an_existing_key_is_used_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TFCOLLECTIVE_KEY", raising=False)
    path = tmp_path / "key"
    assert given_key(str(path)) == (None, str(path))  # the launcher makes one
    path.write_text("ab" * 32)
    path.chmod(0o600)
    assert given_key(str(path)) == (bytes.fromhex("ab" * 32), str(path))
    with JoinProvider(str(path), given=True) as provider:
        provider.request([NodeSettings("10.0.0.1:5", "ab" * 32, "")])
    assert path.read_text() == "ab" * 32
    assert f"the job key is the one in {path}, which was there already" in capsys.readouterr().err


def test_a_key_file_open_to_others_fails(tmp_path):
    path = tmp_path / "key"
    path.write_text("ab" * 32)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        given_key(str(path))


def test_the_key_of_the_environment_is_used(monkeypatch, capsys):
    monkeypatch.setenv("TFCOLLECTIVE_KEY", "cd" * 32)
    assert given_key(None) == (bytes.fromhex("cd" * 32), "")
    with JoinProvider("", given=True) as provider:
        provider.request([NodeSettings("10.0.0.1:5", "cd" * 32, "")])
    said = capsys.readouterr().err
    assert "the environment has the same job key:\n  tfcollective agent --join 10.0.0.1:5\n" in said
    assert "cdcd" not in said
    monkeypatch.setenv("TFCOLLECTIVE_TASK", "worker:0")  # the key is that of the job which this is a rank of
    assert given_key(None) == (None, None)


def test_restarts_need_a_lasting_address_and_key(monkeypatch):
    for name in ("TFCOLLECTIVE_KEY", "TFCOLLECTIVE_KEY_FILE", "TFCOLLECTIVE_KEY_FD"):
        monkeypatch.delenv(name, raising=False)

    def plan(**platform):
        spec = JobSpec(("x",), 2, max_restarts=1, platform={"agents": 1, **platform})
        return JoinedLauncher().plan(spec)

    for platform in ({}, {"port": 29477}, {"key_file": "/shared/key"}):
        with pytest.raises(ConfigError, match="add --port, and --key-file or TFCOLLECTIVE_KEY"):
            plan(**platform)
    assert plan(port=29477, key_file="/shared/key").workers
    monkeypatch.setenv("TFCOLLECTIVE_KEY", "ab" * 32)
    assert plan(port=29477).workers


# ---- elastic jobs ----------------------------------------------------------------------------------------------------


def assigned(num_proc, *agents, least=1, share=1):
    """The parts of agents, each given as (number, host, slots)."""
    found = [NodeFacts(number=number, host=host, slots=slots) for number, host, slots in agents]
    made = elastic_assignment(found, JobSpec(("x",), num_proc, min_proc=least), share)
    parts = {facts.name: [str(worker.task) for worker in workers] for facts, workers in made.parts}
    return parts, {host.name: host.slots for host in made.hosts}


def test_agents_have_stated_slots_or_equal_shares():
    parts, hosts = assigned(3, (1, "b", None), (2, "a", 1), share=2)
    assert parts == {"a": ["worker:0"], "b": ["worker:1", "worker:2"]}
    assert hosts == {"a": 1, "b": 2}


def test_agents_on_one_host_are_separate_hosts():
    parts, hosts = assigned(1, (1, "m", 1), (2, "m", 3), (3, "n", 1))
    assert parts == {"m (agent 1)": ["worker:0"], "m (agent 2)": [], "n": []}
    assert hosts == {"m (agent 1)": 1, "m (agent 2)": 3, "n": 1}
    assert JoinProvider("").machine("m (agent 2)") == JoinProvider("").machine("m") == "m"


def test_a_job_may_begin_with_enough_ranks():
    parts, hosts = assigned(4, (1, "a", 1), (2, "b", 1), least=2)
    assert parts == {"a": ["worker:0"], "b": ["worker:1"]}
    assert hosts == {"a": 1, "b": 1}
    with pytest.raises(ConfigError, match="4 processes do not fit"):
        assigned(4, (1, "a", 1), (2, "b", 1), least=3)


def test_a_later_agent_has_its_own_name():
    facts, slots = JoinProvider("", share=2).take_in(NodeFacts(number=7, host="a"))
    assert (facts.name, slots) == ("a (agent 7)", 2)
    assert JoinProvider("").take_in(NodeFacts(number=8, host="a", slots=3))[1] == 3
