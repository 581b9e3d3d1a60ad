"""Elastic jobs on hosts that come and go, over ssh."""

import signal

import pytest
from growing import Growing

pytestmark = [pytest.mark.hosts, pytest.mark.multiprocess]


@pytest.fixture
def growing(hosts, tmp_path):
    return Growing(tmp_path, lambda arguments: hosts.run(*arguments))


def test_a_job_grows_and_shrinks_with_its_hosts(hosts, growing):
    one, two, three, _ = hosts.addresses
    growing.has(f"{one}:1", f"{two}:1")
    with growing.runs(*growing.discovers, "-np", "2", "--min-np", "1"):
        growing.comes_to(2)
        growing.has(f"{one}:1", f"{two}:1", f"{three}:2")
        growing.comes_to(4)
        growing.has(f"{two}:1", f"{three}:1")
        growing.comes_to(2)
        err, ended = growing.ends()
    assert growing.worlds[-1][0] == 1
    assert len(ended) == 2
    assert "worker:0 has left gracefully" in err
    assert "failed" not in err


def test_a_lost_hosts_ranks_start_on_spares(hosts, growing):
    given = ("-H", hosts.listed(count=3), "--min-np", "1", "-np", "2")
    with growing.runs(*given):
        growing.comes_to(2)
        growing.agent_of(1).send_signal(signal.SIGKILL)
        growing.comes_to_be(0, 2)
        err, _ = growing.ends()
    assert f"worker:2 is started on {hosts.addresses[2]}, slot 0" in err


def test_a_host_unable_to_join_is_named(hosts, growing):
    one, two, three, _ = hosts.addresses
    growing.has(f"{one}:1")
    hosts.stop_sshd(2)
    try:
        with growing.runs(*growing.discovers, "-np", "1"):
            growing.comes_to(1)
            growing.has(f"{one}:1", f"{two}:1", f"{three}:1")
            growing.comes_to(2)
            err, _ = growing.ends()
    finally:
        hosts.start_sshd(2)
    assert f"no rank can run on {two}: ssh cannot connect" in err
    assert f"{two} has lost its agent: nothing is started there for 30 s" in err
