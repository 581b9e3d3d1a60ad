"""Plays the Job controller: creates the pods that Jobs want, and counts how they end."""

from __future__ import annotations

import copy
import time
from collections import Counter
from dataclasses import dataclass, field

from kubernetes_testbed.objects import Object, Store, condition, now, owner_of, seconds_since, set_condition, suffix

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
_NO_LIMIT = 2**31 - 1


@dataclass
class _Record:
    """What is known of a Job beyond its status."""

    failures: Counter[int] = field(default_factory=Counter)  # by index, or by -1
    not_before: dict[int, float] = field(default_factory=dict)
    succeeded: set[int] = field(default_factory=set)
    failed_indexes: set[int] = field(default_factory=set)
    counted: int = 0  # failures that count towards backoffLimit
    verdict: tuple[str, str] | None = None  # the reason why the Job fails, and a message


class JobController:
    """Makes the pods of all Jobs follow their specs. `backoff_s` stands for the 10 s after which a pod comes again."""

    def __init__(self, store: Store, backoff_s: float = 0.1) -> None:
        self._store, self._backoff_s = store, backoff_s
        self._records: dict[str, _Record] = {}

    async def run(self) -> None:
        while True:
            self.sync()
            await self._store.changed(0.1)

    def sync(self) -> None:
        jobs = self._store.list("jobs")
        for job in jobs:
            self._sync(job)
        known = {job["metadata"]["uid"] for job in jobs}
        for pod in self._store.list("pods"):
            if owner_of(pod) not in known:
                self._release(pod)

    # ---- one Job ----

    def _sync(self, job: Object) -> None:
        record = self._records.setdefault(job["metadata"]["uid"], _Record())
        for pod in self._pods(job):
            self._count(job, record, pod)
        pods = [pod for pod in self._pods(job) if not _ended(pod)]
        if condition(job, "Complete") or condition(job, "Failed"):
            self._expire(job)
        elif "deletionTimestamp" not in job["metadata"]:
            self._judge(job, record)
            if record.verdict is not None:
                self._stop(pods)
            elif job["spec"].get("suspend"):
                self._stop(pods)
            elif not _complete(job, record):
                self._populate(job, record, pods)
        self._publish(job, record)

    def _pods(self, job: Object) -> list[Object]:
        namespace = job["metadata"]["namespace"]
        return [pod for pod in self._store.list("pods", namespace) if owner_of(pod) == job["metadata"]["uid"]]

    def _count(self, job: Object, record: _Record, pod: Object) -> None:
        """Counts a pod that has ended, once: the finalizer holds it until then."""
        if TRACKING not in pod["metadata"].get("finalizers", []):
            return
        phase, index = pod["status"].get("phase"), _index(pod)
        leaving = "deletionTimestamp" in pod["metadata"]
        if phase == "Succeeded":
            record.succeeded.add(index if index >= 0 else len(record.succeeded))
        elif phase == "Failed" or (leaving and _replaces_at_once(job)):
            stopped = record.verdict is not None or job["spec"].get("suspend") or index >= _completions(job)
            if not stopped:
                self._count_failure(job, record, pod)
        else:
            return
        self._release(pod)

    def _count_failure(self, job: Object, record: _Record, pod: Object) -> None:
        spec, index, name = job["spec"], _index(pod), pod["metadata"]["name"]
        action = _action(spec, pod)

        def count(current: Object) -> None:
            current["status"]["failed"] = current["status"].get("failed", 0) + 1

        self._store.update("jobs", job["metadata"]["namespace"], job["metadata"]["name"], count)
        if action == "Ignore":
            return
        if action == "FailJob":
            record.verdict = ("PodFailurePolicy", f"Container of pod {name} failed matching FailJob rule")
            return
        record.counted += 1
        record.failures[index] += 1
        pause = min(self._backoff_s * 2 ** (record.failures[index] - 1), 36 * self._backoff_s)
        record.not_before[index] = time.monotonic() + pause
        per_index = spec.get("backoffLimitPerIndex")
        if action == "FailIndex" or (per_index is not None and record.failures[index] > per_index):
            record.failed_indexes.add(index)

    def _judge(self, job: Object, record: _Record) -> None:
        """Finds out whether the Job has failed."""
        spec = job["spec"]
        limit = spec.get("backoffLimit", 6 if spec.get("backoffLimitPerIndex") is None else _NO_LIMIT)
        if spec["template"]["spec"].get("restartPolicy") == "OnFailure":
            restarts = sum(_restarts(pod) for pod in self._pods(job))
        else:
            restarts = 0
        indexed = spec.get("completionMode") == "Indexed"
        ended = record.succeeded | record.failed_indexes
        started = job["status"].get("startTime")
        deadline = spec.get("activeDeadlineSeconds", _NO_LIMIT)
        if record.verdict is not None or _complete(job, record):
            return
        if record.counted + restarts > limit:
            record.verdict = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        elif len(record.failed_indexes) > spec.get("maxFailedIndexes", _NO_LIMIT):
            record.verdict = (
                "MaxFailedIndexesExceeded",
                "Job has exceeded the specified maximal number of failed indexes",
            )
        elif indexed and record.failed_indexes and ended >= set(range(_completions(job))):
            record.verdict = ("FailedIndexes", "Job has failed indexes")
        elif started is not None and not spec.get("suspend") and seconds_since(started) > deadline:
            record.verdict = ("DeadlineExceeded", "Job was active longer than specified deadline")

    def _populate(self, job: Object, record: _Record, pods: list[Object]) -> None:
        """Creates what is missing, deletes what is too much."""
        spec = job["spec"]
        parallelism = spec.get("parallelism", 1)
        surplus = [pod for pod in pods if _index(pod) >= _completions(job)]
        self._stop(surplus)
        pods = [pod for pod in pods if pod not in surplus]
        if _replaces_at_once(job):
            pods = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        self._stop(pods[parallelism:])
        room = parallelism - len(pods)
        if spec.get("completionMode") != "Indexed":
            wanted = _completions(job) - len(record.succeeded) - len(pods)
            ready = time.monotonic() >= record.not_before.get(-1, 0.0)
            for _ in range(min(room, wanted) if ready else 0):
                self._create(job, -1)
            return
        taken = {_index(pod) for pod in pods} | record.succeeded | record.failed_indexes
        free = [index for index in range(_completions(job)) if index not in taken]
        for index in [i for i in free if time.monotonic() >= record.not_before.get(i, 0.0)][: max(room, 0)]:
            self._create(job, index)

    def _create(self, job: Object, index: int) -> None:
        metadata, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
        own = template.get("metadata") or {}
        uid = metadata["uid"]
        labels = {
            "batch.kubernetes.io/job-name": metadata["name"], "job-name": metadata["name"],
            "batch.kubernetes.io/controller-uid": uid, "controller-uid": uid,
        }  # fmt: skip
        annotations = {}
        name = metadata["name"]
        if index >= 0:
            labels[INDEX] = annotations[INDEX] = str(index)
            template["spec"].setdefault("hostname", f"{name}-{index}")
            name = f"{name}-{index}"
            variable = {
                "name": "JOB_COMPLETION_INDEX",
                "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}},
            }
            for container in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]:
                container.setdefault("env", []).append(variable)
        owner = {
            "apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": uid,
            "controller": True, "blockOwnerDeletion": True,
        }  # fmt: skip
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-{suffix()}",
                "generateName": f"{name}-",
                "labels": (own.get("labels") or {}) | labels,
                "annotations": (own.get("annotations") or {}) | annotations,
                "ownerReferences": [owner],
                "finalizers": [TRACKING],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        self._store.create("pods", metadata["namespace"], pod)

    def _stop(self, pods: list[Object]) -> None:
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                self._store.delete("pods", pod)

    def _release(self, pod: Object) -> None:
        def change(current: Object) -> None:
            finalizers = current["metadata"].get("finalizers", [])
            current["metadata"]["finalizers"] = [name for name in finalizers if name != TRACKING]

        if TRACKING in pod["metadata"].get("finalizers", []):
            self._store.update("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], change)

    def _publish(self, job: Object, record: _Record) -> None:
        pods = self._pods(job)
        active = [pod for pod in pods if not _ended(pod) and "deletionTimestamp" not in pod["metadata"]]
        leaving = [pod for pod in pods if not _ended(pod) and "deletionTimestamp" in pod["metadata"]]

        def change(current: Object) -> None:
            status = current.setdefault("status", {})
            if not current["spec"].get("suspend"):
                status.setdefault("startTime", now())
            status |= {
                "active": len(active), "terminating": len(leaving), "succeeded": len(record.succeeded),
                "ready": sum(1 for pod in active if condition(pod, "Ready")),
            }  # fmt: skip
            if current["spec"].get("completionMode") == "Indexed":
                status["completedIndexes"] = _ranges(record.succeeded)
            if current["spec"].get("backoffLimitPerIndex") is not None:
                status["failedIndexes"] = _ranges(record.failed_indexes)
            _set_conditions(current, record, any(not _ended(pod) for pod in pods))

        if self._store.find("jobs", job["metadata"]["namespace"], job["metadata"]["name"]) is not None:
            self._store.update("jobs", job["metadata"]["namespace"], job["metadata"]["name"], change)

    def _expire(self, job: Object) -> None:
        limit = job["spec"].get("ttlSecondsAfterFinished")
        end = condition(job, "Complete") or condition(job, "Failed")
        if limit is not None and end and seconds_since(end["lastTransitionTime"]) >= limit:
            if "deletionTimestamp" not in job["metadata"]:
                self._store.delete("jobs", job)


def _set_conditions(job: Object, record: _Record, running: bool) -> None:
    if condition(job, "Complete") or condition(job, "Failed"):
        return
    suspended = bool(job["spec"].get("suspend"))
    if suspended != bool(condition(job, "Suspended")):
        set_condition(job, "Suspended", str(suspended), "JobSuspended" if suspended else "JobResumed")
    if record.verdict is not None:
        reason, message = record.verdict
        if not condition(job, "FailureTarget"):
            set_condition(job, "FailureTarget", "True", reason, message)
        if not running:
            set_condition(job, "Failed", "True", reason, message)
    elif _complete(job, record):
        if not condition(job, "SuccessCriteriaMet"):
            set_condition(job, "SuccessCriteriaMet", "True", "CompletionsReached")
        if not running:
            set_condition(job, "Complete", "True", "CompletionsReached", "Reached expected number of succeeded pods")
            job["status"]["completionTime"] = now()


def _completions(job: Object) -> int:
    value = job["spec"].get("completions")
    return int(job["spec"].get("parallelism", 1) if value is None else value)


def _complete(job: Object, record: _Record) -> bool:
    if job["spec"].get("completionMode") == "Indexed":
        return set(range(_completions(job))) <= record.succeeded
    return len(record.succeeded) >= _completions(job)


def _replaces_at_once(job: Object) -> bool:
    """Whether a pod that is being deleted is replaced before its process has ended."""
    default = "Failed" if job["spec"].get("podFailurePolicy") else "TerminatingOrFailed"
    return bool(job["spec"].get("podReplacementPolicy", default) == "TerminatingOrFailed")


def _ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _index(pod: Object) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, -1))


def _restarts(pod: Object) -> int:
    return sum(status.get("restartCount", 0) for status in pod["status"].get("containerStatuses", []))


def _action(spec: Object, pod: Object) -> str:
    """What the first rule of podFailurePolicy that matches says."""
    for rule in (spec.get("podFailurePolicy") or {}).get("rules", []):
        if "onExitCodes" in rule and _exit_codes_match(rule["onExitCodes"], pod):
            return str(rule["action"])
        for wanted in rule.get("onPodConditions") or []:
            found = [c for c in pod["status"].get("conditions", []) if c["type"] == wanted["type"]]
            if found and found[0]["status"] == wanted.get("status", "True"):
                return str(rule["action"])
    return "Count"


def _exit_codes_match(rule: Object, pod: Object) -> bool:
    for status in pod["status"].get("containerStatuses", []):
        ended = (status.get("state") or {}).get("terminated")
        if ended is None or rule.get("containerName") not in (None, status["name"]) or not ended["exitCode"]:
            continue
        if (ended["exitCode"] in rule["values"]) == (rule["operator"] == "In"):
            return True
    return False


def _ranges(indexes: set[int]) -> str:
    """Indexes as a Job's status writes them: 1,3-5."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] == index - 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
