"""The objects of an API server: kept, changed, deleted, watched."""

from __future__ import annotations

import asyncio
import copy
import datetime
import random
import re
import string
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

FOREGROUND = "foregroundDeletion"


@dataclass(frozen=True)
class Resource:
    """One kind of object, and where it is served."""

    plural: str
    kind: str
    api_version: str = "v1"
    namespaced: bool = True


RESOURCES = {
    resource.plural: resource
    for resource in (
        Resource("pods", "Pod"),
        Resource("services", "Service"),
        Resource("secrets", "Secret"),
        Resource("configmaps", "ConfigMap"),
        Resource("events", "Event"),
        Resource("nodes", "Node", namespaced=False),
        Resource("jobs", "Job", "batch/v1"),
    )
}


class ApiError(Exception):
    """An answer of the API server that is no success: its code, reason and message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Object:
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        }  # fmt: skip


@dataclass(frozen=True)
class Change:
    """What a watch tells of: ADDED, MODIFIED or DELETED."""

    version: int
    type: str
    plural: str
    object: Object


def now() -> str:
    """This moment as the API writes it."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(timestamp: str) -> float:
    begin = datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    return (datetime.datetime.now(datetime.timezone.utc) - begin).total_seconds()


def suffix(length: int = 5) -> str:
    return "".join(random.choices("bcdfghjklmnpqrstvwxz" + string.digits[2:], k=length))


def condition(item: Object, kind: str) -> Object | None:
    """The condition of this type in the status of `item`, if it is True."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind and c["status"] == "True"), None)


def set_condition(item: Object, kind: str, status: str = "True", reason: str = "", message: str = "") -> None:
    conditions = item.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [c for c in conditions if c["type"] != kind]
    conditions.append(
        {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()}
    )


def owner_of(item: Object) -> str | None:
    """The uid of the object that controls this one."""
    owners = item["metadata"].get("ownerReferences") or []
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def labels_match(item: Object, selector: str) -> bool:
    """Whether a label selector of a query selects the object: a=b, a==b, a!=b, a, !a, a in (b, c), a notin (b, c)."""
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, (term.strip() for term in re.split(r",(?![^(]*\))", selector))):
        among = re.fullmatch(r"(\S+)\s+(in|notin)\s+\((.*)\)", term)
        compared = re.fullmatch(r"([^=!\s]+)\s*(==|=|!=)\s*(\S*)", term)
        if among:
            found = labels.get(among[1]) in [value.strip() for value in among[3].split(",")]
            matches = found == (among[2] == "in")
        elif compared:
            matches = (labels.get(compared[1]) == compared[3]) == (compared[2] != "!=")
        else:
            matches = (term.lstrip("!") in labels) != term.startswith("!")
        if not matches:
            return False
    return True


def fields_match(item: Object, selector: str) -> bool:
    """Whether a field selector of a query selects the object."""
    for term in filter(None, selector.split(",")):
        path, negated, value = re.fullmatch(r"([\w.]+)\s*(!?)==?\s*(.*)", term).groups()  # type: ignore[union-attr]
        found: Any = item
        for name in path.split("."):
            found = (found or {}).get(name)
        if (str(found or "") == value) == bool(negated):
            return False
    return True


class Store:
    """All objects with their versions. Belongs to one event loop."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._version = 1
        self._history: list[Change] = []
        self._oldest = 0  # watches that begin before this version get 410 Gone
        self._news = asyncio.Event()

    # ---- reading ----

    @property
    def version(self) -> str:
        return str(self._version)

    def get(self, plural: str, namespace: str, name: str) -> Object:
        """A copy of the object. Raises :class:`ApiError` 404."""
        item = self._objects.get((plural, namespace, name))
        if item is None:
            raise ApiError(404, "NotFound", f'{plural} "{name}" not found')
        return copy.deepcopy(item)

    def find(self, plural: str, namespace: str, name: str) -> Object | None:
        item = self._objects.get((plural, namespace, name))
        return copy.deepcopy(item)

    def list(self, plural: str, namespace: str | None = None, labels: str = "", fields: str = "") -> list[Object]:
        """Copies of the objects of this kind; of all namespaces where `namespace` is None."""
        found = (
            item for (kind, place, _), item in self._objects.items() if kind == plural and namespace in (None, place)
        )
        return [copy.deepcopy(item) for item in found if labels_match(item, labels) and fields_match(item, fields)]

    def dependents(self, uid: str) -> Iterator[tuple[str, Object]]:
        """The objects that name `uid` as an owner."""
        for (plural, _, _), item in list(self._objects.items()):
            if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences") or []):
                yield plural, copy.deepcopy(item)

    # ---- writing ----

    def create(self, plural: str, namespace: str, item: Object, keep: bool = True) -> Object:
        """Adds the object; gives it a name where it has only `generateName`. Raises :class:`ApiError` 409."""
        item = copy.deepcopy(item)
        metadata = item.setdefault("metadata", {})
        if not metadata.get("name"):
            metadata["name"] = metadata.get("generateName", "") + suffix()
        key = (plural, namespace, metadata["name"])
        if key in self._objects:
            raise ApiError(409, "AlreadyExists", f'{plural} "{metadata["name"]}" already exists')
        if namespace:
            metadata["namespace"] = namespace
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        if keep:
            self._objects[key] = item
            self._record("ADDED", plural, item)
        return copy.deepcopy(item)

    def update(self, plural: str, namespace: str, name: str, change: Callable[[Object], None]) -> Object:
        """Has `change` edit the object; what it leaves alike makes no new version. Raises :class:`ApiError` 404."""
        item = self.get(plural, namespace, name)
        before = copy.deepcopy(item)
        change(item)
        if item == before:
            return item
        if item.get("spec") != before.get("spec"):
            item["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1
        self._objects[plural, namespace, name] = item
        self._record("MODIFIED", plural, item)
        self._remove_when_due(plural, item)
        return copy.deepcopy(item)

    def delete(self, plural: str, item: Object, propagation: str = "Background", grace_s: float | None = None) -> None:
        """Deletes: pods get their grace period, objects with dependents what `propagation` says."""
        metadata = item["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]

        def mark(current: Object) -> None:
            if plural == "pods":
                default = current["spec"].get("terminationGracePeriodSeconds", 30)
                grace = default if grace_s is None else grace_s
                asked = current["metadata"].get("deletionGracePeriodSeconds")
                current["metadata"]["deletionGracePeriodSeconds"] = grace if asked is None else min(asked, grace)
            current["metadata"].setdefault("deletionTimestamp", now())
            finalizers = current["metadata"].setdefault("finalizers", [])
            if propagation == "Foreground" and FOREGROUND not in finalizers:
                finalizers.append(FOREGROUND)

        if propagation == "Orphan":
            for kind, dependent in list(self.dependents(metadata["uid"])):
                self._disown(kind, dependent, metadata["uid"])
        self.update(plural, namespace, name, mark)
        if propagation == "Foreground":
            self.collect_garbage(metadata["uid"])
            self._end_foreground(metadata["uid"])

    def remove(self, plural: str, item: Object) -> None:
        """Removes the object for good, and what it owned."""
        metadata = item["metadata"]
        key = (plural, metadata.get("namespace", ""), metadata["name"])
        current = self._objects.get(key)
        if current is None or current["metadata"]["uid"] != metadata["uid"]:
            return
        del self._objects[key]
        self._record("DELETED", plural, current)
        self.collect_garbage(metadata["uid"])
        for owner in metadata.get("ownerReferences") or []:
            self._end_foreground(owner["uid"])

    def collect_garbage(self, uid: str) -> None:
        """Deletes what only the object `uid` owned, as the garbage collector does."""
        for plural, item in list(self.dependents(uid)):
            others = [owner["uid"] for owner in item["metadata"]["ownerReferences"] if owner["uid"] != uid]
            if not any(self._uid_exists(other) for other in others) and "deletionTimestamp" not in item["metadata"]:
                self.delete(plural, item)

    # ---- watching ----

    async def changed(self, timeout_s: float) -> None:
        """Waits until anything has changed, at most so long."""
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait([news], timeout=timeout_s)  # wait_for may swallow a cancellation
        finally:
            news.cancel()

    async def watch(self, since: str) -> AsyncIterator[Change]:
        """Every change after version `since`. Raises :class:`ApiError` 410 where it is no longer known."""
        seen = int(since or 0) or self._version
        while True:
            if seen < self._oldest:
                raise ApiError(410, "Expired", f"too old resource version: {seen} ({self._oldest})")
            fresh = [change for change in self._history if change.version > seen]
            news = self._news
            for change in fresh:
                seen = change.version
                yield change
            if not fresh:
                await news.wait()

    def compact(self) -> None:
        """Forgets all changes, so that every watch gets 410 Gone and has to list again."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()
        self._wake()

    # ---- inside ----

    def _record(self, kind: str, plural: str, item: Object) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._history.append(Change(self._version, kind, plural, copy.deepcopy(item)))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _remove_when_due(self, plural: str, item: Object) -> None:
        """Removes an object that is being deleted once nothing holds it: no finalizer, and, of a pod, no process."""
        metadata = item["metadata"]
        if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
            return
        phase = (item.get("status") or {}).get("phase")
        if plural != "pods" or phase in ("Succeeded", "Failed") or not item["spec"].get("nodeName"):
            self.remove(plural, item)

    def _uid_exists(self, uid: str) -> bool:
        return any(item["metadata"]["uid"] == uid for item in self._objects.values())

    def _end_foreground(self, uid: str) -> None:
        if any(True for _ in self.dependents(uid)):
            return
        for (plural, namespace, name), item in list(self._objects.items()):
            if item["metadata"]["uid"] == uid and FOREGROUND in item["metadata"].get("finalizers", []):
                self.update(plural, namespace, name, lambda owner: owner["metadata"]["finalizers"].remove(FOREGROUND))

    def _disown(self, plural: str, item: Object, uid: str) -> None:
        def change(current: Object) -> None:
            owners = current["metadata"]["ownerReferences"]
            current["metadata"]["ownerReferences"] = [owner for owner in owners if owner["uid"] != uid]

        self.update(plural, item["metadata"].get("namespace", ""), item["metadata"]["name"], change)
