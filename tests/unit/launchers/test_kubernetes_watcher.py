"""What is said of pods, and how a watch goes on after errors: with a cluster that is a list of answers."""

import threading

import pytest
from launching import until
from tfcollective_launchers.kubernetes.cluster import ClusterError, event_of
from tfcollective_launchers.kubernetes.watcher import PodWatcher, state_of


def pod(name="p", phase="Running", version="1", container=None, conditions=(), **more):
    status = {"phase": phase, "podIP": "10.0.0.1", "conditions": list(conditions)}
    if container is not None:
        status["containerStatuses"] = [{"state": container}]
    metadata = {"name": name, "resourceVersion": version, "labels": {"app.kubernetes.io/component": "agents"}}
    return {"metadata": metadata | more, "spec": {"nodeName": "n"}, "status": status}


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (pod(phase="Pending", conditions=[UNSCHEDULABLE]), "is pending: 0/3 nodes are available"),
        (
            pod(phase="Pending", container={"waiting": {"reason": "ErrImagePull", "message": "not found"}}),
            "is pending: ErrImagePull: not found",
        ),
        (pod(phase="Pending", container={"waiting": {"reason": "ContainerCreating"}}), "is pending"),
        (
            pod(phase="Failed", container={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            "is failed: OOMKilled, exit code 137",
        ),
        (
            pod(
                phase="Failed",
                container={"terminated": {"exitCode": 143, "reason": "Error"}},
                conditions=[EVICTED],
            ),
            "is failed: PreemptionByScheduler, exit code 143",
        ),
        (pod(deletionTimestamp="2026-01-01T00:00:00Z"), "is asked to end"),
    ],
)
def test_a_pod_is_described(one, said):
    assert str(state_of(one)) == f"the pod p on n {said}"


class Answers:
    """A cluster whose lists and watches are given."""

    def __init__(self, lists, watches):
        self.lists, self.watches = list(lists), list(watches)
        self.asked = []
        self.over = threading.Event()

    def pods(self, selector):
        self.asked.append("list")
        return self.lists.pop(0)

    def changes(self, selector, version, seconds):
        self.asked.append(version)
        if not self.watches:
            self.over.set()
            raise ClusterError("away")
        for one in self.watches.pop(0):
            if isinstance(one, Exception):
                raise one
            yield one


def watched(lists, watches):
    said = []
    cluster = Answers(lists, watches)
    with PodWatcher(cluster, "", said.append) as watcher:
        until(cluster.over.is_set, 20)
    return cluster, watcher, said


def test_a_watch_resumes_after_an_error():
    changes = [("MODIFIED", pod(version="5")), ("BOOKMARK", {"metadata": {"resourceVersion": "9"}}), ClusterError("x")]
    cluster, watcher, _ = watched([([pod(phase="Pending", version="2")], "3")], [changes])
    assert cluster.asked[:3] == ["list", "3", "9"]
    assert watcher.pods["p"].phase == "Running"


def test_an_outdated_version_begins_with_a_list():
    first, second = ([pod("a"), pod("b")], "3"), ([pod("b", version="8")], "9")
    cluster, watcher, _ = watched([first, second], [[ClusterError("gone", 410)]])
    assert cluster.asked[:4] == ["list", "3", "list", "9"]
    assert watcher.pods["a"].phase == "Deleted"
    assert watcher.pods["b"].phase == "Running"


class Pauses(threading.Event):
    """Counts the pauses, which take no time."""

    count = 0

    def wait(self, timeout=None):
        self.count += 1
        return self.is_set()


def test_watches_that_end_restart_after_a_pause():
    lists = [([], str(number)) for number in range(4)]
    cluster = Answers(lists, [[], [ClusterError("gone", 410)], [], [ClusterError("gone", 410)]])
    watcher = PodWatcher(cluster, "", lambda text: None)
    watcher._closed = Pauses()
    with watcher:
        until(lambda: watcher._closed.count >= 5, 20)
    assert cluster.asked[:7] == ["list", "0", "0", "list", "1", "1", "list"]


@pytest.mark.parametrize(
    "line", [b"<html>", b"[]", b'{"type": "ADDED"}', b'{"type": "ADDED", "object": {"metadata": null}}']
)
def test_an_invalid_watch_line_is_an_error(line):
    with pytest.raises(ClusterError, match="expected an event"):
        event_of(line)


def test_what_happens_is_said_once():
    waits = pod(phase="Pending", version="4", conditions=[UNSCHEDULABLE])
    failed = pod(phase="Failed", version="6", container={"terminated": {"exitCode": 3, "reason": "Error"}})
    changes = [("ADDED", waits), ("MODIFIED", waits), ("MODIFIED", pod(version="5")), ("MODIFIED", failed)]
    _, _, said = watched([([], "3")], [[*changes, ("DELETED", failed)]])
    assert said == ["the pod p on n is pending: 0/3 nodes are available", "the pod p on n is failed: exit code 3"]
