"""A real SLURM of three nodes on this machine; every test leaves it without jobs."""

import os
import subprocess

import pytest
import slurm_testbed

ADDRESSES = ("10.77.0.1", "10.77.0.2", "10.77.0.3")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """In a network of our own, where each node has an address, and its name leads there."""
    reason = slurm_testbed.missing()
    if reason is not None:
        pytest.skip(reason)
    if "TFC_OWN_NETWORK" not in os.environ:
        pytest.skip("the nodes need a network of their own: run `make test-slurm`")
    hosts = tmp_path_factory.mktemp("network") / "hosts"
    names = [f"{address} {name}" for address, name in zip(ADDRESSES, slurm_testbed.NODES)]
    hosts.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
    for address in ADDRESSES:
        subprocess.run(["ip", "address", "add", f"{address}/24", "dev", "lo"], check=True, timeout=20)
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True, timeout=20)
    with slurm_testbed.slurm(tmp_path_factory.mktemp("slurm"), ADDRESSES) as cluster:
        yield cluster


@pytest.fixture
def slurm(cluster):
    """The cluster, which is idle before and afterwards."""
    cluster.wait_until_idle()
    yield cluster
    cluster.run("scancel", "--user=root", check=False)
    cluster.wait_until_idle()
