"""What an observer of the network can read between hosts: every packet of a job."""

import pytest
from control_wire import Sniffer, keys_in, with_base64

import tfcollective
from tfcollective import _cluster as clusters
from tfcollective._control.serve.server import CoordinatorServer
from tfcollective._launch.running import job as running_job

pytestmark = [pytest.mark.hosts, pytest.mark.multiprocess]

MARK = "what-only-this-function-says"


@pytest.fixture
def jobs(monkeypatch):
    """The keys of all coordinators that this process opens, by the names of their jobs."""
    found = {}

    class Noted(CoordinatorServer):
        def start(self):
            found[self._options.job_id] = self._options.key
            return super().start()

    for module in (running_job, clusters):
        monkeypatch.setattr(module, "CoordinatorServer", Noted)
    return found


def marked(value):
    tfcollective.init()
    return f"{value} {tfcollective.rank()} {MARK}"


@pytest.fixture
def over_ssh(hosts, monkeypatch):
    """The options with which functions run on two of the hosts."""
    options, identity = hosts.options()[1], hosts.options()[3]
    platform = {"options": tuple(options.split()), "identity_file": identity}
    monkeypatch.setenv("TFCOLLECTIVE_START_TIMEOUT", "60")
    network = {"hosts": hosts.listed(count=2), "network_interfaces": ("10.213.87.0/24",)}
    return {"launcher": "ssh", "platform": platform, "env": {"MY_ENV": MARK}, **network}


def test_a_cluster_over_ssh(over_ssh, jobs):
    with Sniffer() as wire:
        with tfcollective.cluster(np=2, **over_ssh) as kept:
            assert kept.run(marked, "called") == [f"called {rank} {MARK}" for rank in range(2)]
    assert len(jobs) == 2
    assert b"SSH-2.0" in wire.recorded  # that it sees what passes
    assert keys_in(wire.recorded, jobs) == []
    assert MARK.encode() not in with_base64(bytes(wire.recorded))
    assert b"/v1/" not in wire.recorded
