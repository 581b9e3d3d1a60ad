"""Follows the pods of a job: what they are at, and what becomes of them, for people and for the launcher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import DEBUG, WARNING

from tfcollective.launcher import TIMING, get_logger, say
from tfcollective_launchers.kubernetes.cluster import Cluster, ClusterError, version_is_too_old
from tfcollective_launchers.kubernetes.kinds.common import Object

_LOG = get_logger(__name__)
_WATCH_S = 60.0
_COMPONENT = "app.kubernetes.io/component"
_ENDED = ("Succeeded", "Failed")
#: Why a container waits that will never run, whatever the cluster does.
HOPELESS = ("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError")
_TROUBLE = (*HOPELESS, "ErrImagePull", "ImagePullBackOff", "CrashLoopBackOff", "RunContainerError")


@dataclass(frozen=True)
class PodState:
    """The known state of a pod.

    Attributes:
        name: its name.
        part: its part in the job.
        phase: ``Pending``, ``Running``, ``Succeeded``, ``Failed``, or ``Deleted``.
        address: its address, or empty.
        node: the node that it is on, or empty.
        why: why it waits, or how it has ended; or empty.
        code: the exit code of its container, or None.
        hopeless: whether it will never run.
        leaves: whether it has been asked to end.
    """

    name: str
    part: str
    phase: str
    address: str = ""
    node: str = ""
    why: str = ""
    code: int | None = None
    hopeless: bool = False
    leaves: bool = False

    @property
    def ended(self) -> bool:
        """True if it no longer runs."""
        return self.phase in (*_ENDED, "Deleted")

    def __str__(self) -> str:
        node = f" on {self.node}" if self.node else ""
        leaves = "is asked to end" if self.leaves and not self.ended else self.phase.lower()
        return f"the pod {self.name}{node} {'' if leaves.startswith('is') else 'is '}{leaves}" + (
            f": {self.why}" if self.why else ""
        )


def state_of(pod: Object) -> PodState:
    """Returns the state of the pod that an object describes."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    states = [one.get("state") or {} for one in containers]
    waiting: Object = next((one["waiting"] for one in states if one.get("waiting")), {})
    ended: Object = next((one["terminated"] for one in states if one.get("terminated")), {})
    code = ended.get("exitCode")
    return PodState(
        name=metadata["name"],
        part=(metadata.get("labels") or {}).get(_COMPONENT, ""),
        phase=status.get("phase") or "Pending",
        address=status.get("podIP") or "",
        node=(pod.get("spec") or {}).get("nodeName") or "",
        why=_why(status, waiting, ended),
        code=code,
        hopeless=waiting.get("reason") in HOPELESS,
        leaves=bool(metadata.get("deletionTimestamp")),
    )


def _why(status: Object, waiting: Object, ended: Object) -> str:
    """A few words: of the kubelet on the container, of the cluster on the pod."""
    if ended:
        reason, code = ended.get("reason") or "", ended.get("exitCode")
        taken = [one for one in _conditions(status) if one["type"] == "DisruptionTarget" and one["status"] == "True"]
        cause = taken[0].get("reason") or "" if taken else status.get("reason") or ""
        words = [cause, "" if reason in ("Error", "Completed") else reason, f"exit code {code}"]
        return ", ".join(word for word in words if word)
    if waiting.get("reason") in _TROUBLE:
        return ": ".join(part for part in (waiting["reason"], waiting.get("message") or "") if part)
    if status.get("reason"):
        return ": ".join(part for part in (status["reason"], status.get("message") or "") if part)
    for one in _conditions(status):
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return one.get("message") or one.get("reason") or ""
    return ""


def _conditions(status: Object) -> list[Object]:
    return list(status.get("conditions") or ())


class PodWatcher:
    """The pods with some labels, always as the cluster has said last. A context manager: while it is open, a thread
    follows them, and continues after errors: a cluster that cannot be reached does not change what is known.

    Args:
        cluster: where they are.
        selector: their labels.
        say: is given each change that people want to know of.
    """

    def __init__(self, cluster: Cluster, selector: str, say: Callable[[str], None] = say) -> None:
        self._cluster = cluster
        self._selector = selector
        self._say = say
        self._pods: dict[str, PodState] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._quiet = False
        self._thread = threading.Thread(target=self._run, name="tfc-pods", daemon=True)

    def __enter__(self) -> PodWatcher:
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        """The thread is a daemon: it may wait for the cluster."""
        self._closed.set()

    @property
    def pods(self) -> Mapping[str, PodState]:
        """The present and past pods, by name."""
        with self._changed:
            return dict(self._pods)

    def part(self, part: str) -> list[PodState]:
        """Returns the pods of one part of the job."""
        return [one for one in self.pods.values() if one.part == part]

    def wait(self, seconds: float) -> None:
        """Waits until a pod has changed, at most so long."""
        with self._changed:
            self._changed.wait(seconds)

    def quiet(self) -> None:
        """Reports no further changes: they belong to the end of the job."""
        self._quiet = True

    def _run(self) -> None:
        version, warned = "", False
        while not self._closed.is_set():
            try:
                if not version:
                    listed, version = self._cluster.pods(self._selector)
                    self._replace(listed)
                for kind, pod in self._cluster.changes(self._selector, version, _WATCH_S):
                    version = pod["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        self._note(state_of(pod), deleted=kind == "DELETED")
                    if self._closed.is_set():
                        return
                warned = False
            except ClusterError as error:
                if version_is_too_old(error):
                    version = ""
                else:
                    _LOG.log(DEBUG if warned else WARNING, "kubernetes: %s", error)
                    warned = True
            self._closed.wait(TIMING.retry)  # a server that ends each watch at once is not asked without a pause

    def _replace(self, listed: list[Object]) -> None:
        here = {pod["metadata"]["name"]: state_of(pod) for pod in listed}
        for name, before in self.pods.items():
            if name not in here and not before.ended:
                self._note(before, deleted=True)
        for state in here.values():
            self._note(state)

    def _note(self, state: PodState, *, deleted: bool = False) -> None:
        with self._changed:
            before = self._pods.get(state.name)
            if deleted and not state.ended:
                state = PodState(**{**vars(state), "phase": "Deleted"})
            self._pods[state.name] = state
            self._changed.notify_all()
        if not self._quiet and _is_news(before, state):
            self._say(str(state))


def _is_news(before: PodState | None, now: PodState) -> bool:
    """True if the change is worth a message: a pod waits for a reason, is preempted, or has failed."""
    if now.phase == "Running" and not now.leaves:
        return False
    if before is not None and (before.phase, before.why, before.leaves) == (now.phase, now.why, now.leaves):
        return False
    if before is not None and before.ended:
        return False
    return bool(now.why or now.leaves) and now.phase != "Succeeded"
