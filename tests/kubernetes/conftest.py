"""A cluster whose pods are processes of this machine, for each test that asks for one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes_testbed import Cluster, missing, this_python

JOBS = Path(__file__).parent / "jobs"
_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture
def has_failed(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Says, once the test has ended, whether it has failed."""
    return lambda: request.node.stash.get(_FAILED, False)


@pytest.fixture
def make_cluster(tmp_path: Path, has_failed: Callable[[], bool]) -> Iterator[Callable[..., Cluster]]:
    """Opens a cluster with the given options; closes it after the test, and tells what happened in one that failed."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    opened: list[Cluster] = []

    def make(**options: object) -> Cluster:
        cluster = Cluster(tmp_path, **{"image": this_python(app=JOBS), **options})
        opened.append(cluster.__enter__())
        return cluster

    yield make
    for cluster in opened:
        if has_failed():
            cluster.tell_what_happened()
        cluster.__exit__(None, None, None)


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster()
