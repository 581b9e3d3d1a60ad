"""Plays scheduler and kubelet: puts pods on nodes, runs their containers, ends them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kubernetes_testbed import network
from kubernetes_testbed.containers import Container, Image, Mount, expand
from kubernetes_testbed.objects import ApiError, Object, Store, condition, now, set_condition, suffix

_RESTART_PAUSE_S = 0.1  # stands for the 10 s, 20 s ... of CrashLoopBackOff


class CannotStart(Exception):
    """A container that kubelet cannot make: the reason that its status says, and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Kubelets:
    """The scheduler, and the kubelets of all nodes. Logs stay when their pods are gone."""

    def __init__(self, store: Store, net: network.Network, folder: Path, image: Image) -> None:
        self.store, self.network, self.folder, self.image = store, net, folder, image
        self.lost: set[str] = set()  # nodes that are cut off
        self.sandboxes: dict[str, Sandbox] = {}  # by uid of the pod
        self.containers: dict[tuple[str, str], list[Container]] = {}  # by pod and container, each of its restarts

    async def run(self) -> None:
        while True:
            for pod in self.store.list("pods"):
                self._sync(pod)
            self._end_orphans()
            self._write_names()
            await self.store.changed(0.1)

    async def close(self) -> None:
        sandboxes = list(self.sandboxes.values())
        for sandbox in sandboxes:
            sandbox.kill()
        await asyncio.gather(*(sandbox.finished() for sandbox in sandboxes), return_exceptions=True)

    def cut(self, node: str, whole: bool = False) -> None:
        """Takes the node away with all that runs on it, or brings it back."""
        (self.lost.discard if whole else self.lost.add)(node)
        for sandbox in self.sandboxes.values():
            if sandbox.node == node:
                self.network.cut(sandbox.plug, whole)
                if whole:
                    sandbox.publish()

    def event(self, item: Object, reason: str, message: str, kind: str = "Normal") -> None:
        metadata = item["metadata"]
        involved = {
            "kind": item["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        event = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{metadata['name']}.{suffix(10)}"},
            "involvedObject": involved, "reason": reason, "message": message, "type": kind, "count": 1,
            "firstTimestamp": now(), "lastTimestamp": now(),
        }  # fmt: skip
        self.store.create("events", metadata["namespace"], event)

    # ---- inside ----

    def _sync(self, pod: Object) -> None:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName")
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            return
        if node is None:
            if "deletionTimestamp" not in metadata:
                self._schedule(pod)
        elif node not in self.lost:
            sandbox = self.sandboxes.get(metadata["uid"])
            if sandbox is None:
                sandbox = self.sandboxes[metadata["uid"]] = Sandbox(self, pod)
            if "deletionTimestamp" in metadata:
                sandbox.stop(float(metadata.get("deletionGracePeriodSeconds", 30)))

    def _end_orphans(self) -> None:
        """Ends what runs on for a pod that no longer exists, as on a node that comes back."""
        known = {pod["metadata"]["uid"] for pod in self.store.list("pods")}
        for uid, sandbox in list(self.sandboxes.items()):
            if sandbox.done:
                del self.sandboxes[uid]
            elif uid not in known and sandbox.node not in self.lost:
                sandbox.stop(0.0)

    def _schedule(self, pod: Object) -> None:
        reasons = []
        nodes = [node for node in self.store.list("nodes") if not node["spec"].get("unschedulable")]
        nodes = [node for node in nodes if node["metadata"]["name"] not in self.lost]
        for node in sorted(nodes, key=lambda node: len(self._on(node["metadata"]["name"]))):
            wrong = self._wrong_with(node, pod)
            if wrong is None:
                self._bind(pod, node["metadata"]["name"])
                return
            reasons.append(wrong)
        message = f"0/{len(nodes)} nodes are available: {', '.join(sorted(set(reasons))) or 'none is ready'}."
        if not any(c["type"] == "PodScheduled" for c in pod["status"].get("conditions", [])):
            self._change(pod, lambda current: set_condition(current, "PodScheduled", "False", "Unschedulable", message))
            self.event(pod, "FailedScheduling", message, "Warning")

    def _on(self, node: str) -> list[Object]:
        pods = (pod for pod in self.store.list("pods") if pod["spec"].get("nodeName") == node)
        return [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]

    def _wrong_with(self, node: Object, pod: Object) -> str | None:
        labels = node["metadata"].get("labels") or {}
        if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
            return "node(s) didn't match Pod's node affinity/selector"
        others = self._on(node["metadata"]["name"])
        for resource, amount in node["status"]["allocatable"].items():
            if sum(_requested(other, resource) for other in (*others, pod)) > quantity(amount):
                return f"Insufficient {resource}"
        allocatable = node["status"]["allocatable"]
        missing = [name for name in _resources(pod) if "/" in name and name not in allocatable]
        return f"Insufficient {missing[0]}" if missing else None

    def _bind(self, pod: Object, node: str) -> None:
        def change(current: Object) -> None:
            current["spec"]["nodeName"] = node
            set_condition(current, "PodScheduled")

        self._change(pod, change)
        self.event(pod, "Scheduled", f"Successfully assigned {pod['metadata']['name']} to {node}")

    def _change(self, pod: Object, change: Callable[[Object], None]) -> None:
        self.store.update("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], change)

    def _write_names(self) -> None:
        pods = self.store.list("pods")
        dns = network.names(pods, self.store.list("services"))
        lines = [f"{address} {' '.join(names)}" for address, names in dns]
        for sandbox in self.sandboxes.values():
            if not sandbox.done and sandbox.node not in self.lost:
                network.write_hosts(
                    sandbox.hosts, ["127.0.0.1 localhost", f"{sandbox.address} {sandbox.hostname}", *lines]
                )


class Sandbox:
    """One pod on its node: its place in the network, its files and its containers."""

    def __init__(self, kubelets: Kubelets, pod: Object) -> None:
        self._kubelets, self.pod = kubelets, pod
        metadata, self.spec = pod["metadata"], pod["spec"]
        self.name, self.namespace, self.node = metadata["name"], metadata["namespace"], self.spec["nodeName"]
        self.hostname = self.spec.get("hostname") or self.name
        self.folder = kubelets.folder / f"{self.name}-{metadata['uid'][:8]}"
        self.folder.mkdir()
        self.folder.chmod(0o755)
        self.hosts = self.folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.plug = kubelets.network.plug()
        self.address = self.plug.address
        self.done = False
        self._phase, self._statuses = (
            "Pending",
            {c["name"]: _waiting(c["name"], "ContainerCreating") for c in self._all()},
        )
        self._running: dict[str, Container] = {}
        self._stopping: asyncio.Task[None] | None = None
        self._deadline = float("inf")
        self._work = asyncio.create_task(self._run())

    def publish(self) -> None:
        """Writes the pod's status, unless its node is cut off."""
        if self.node in self._kubelets.lost:
            return
        running = self._phase == "Running" and self._stopping is None
        initial = {container["name"] for container in self.spec.get("initContainers", [])}

        def change(current: Object) -> None:
            if current["metadata"]["uid"] != self.pod["metadata"]["uid"]:
                return
            status = current["status"]
            status |= {
                "phase": self._phase,
                "podIP": self.address,
                "podIPs": [{"ip": self.address}],
                "hostIP": network.GATEWAY,
            }
            status.setdefault("startTime", now())
            status["containerStatuses"] = [status for name, status in self._statuses.items() if name not in initial]
            if initial:
                status["initContainerStatuses"] = [self._statuses[name] for name in self._statuses if name in initial]
            for kind in ("Ready", "ContainersReady"):
                if bool(condition(current, kind)) != running or not any(
                    c["type"] == kind for c in status.get("conditions", [])
                ):
                    set_condition(current, kind, str(running))

        with contextlib.suppress(ApiError):  # deleted by force meanwhile
            self._kubelets.store.update("pods", self.namespace, self.name, change)

    def stop(self, grace_s: float) -> None:
        """What kubelet does to a pod that is to go: preStop, SIGTERM, and SIGKILL when the grace period is over. A
        later call can only shorten it."""
        self._deadline = min(self._deadline, time.monotonic() + grace_s)
        if self._stopping is None and not self.done:
            self._stopping = asyncio.create_task(self._stop())

    def kill(self) -> None:
        self._deadline = 0.0
        for container in self._running.values():
            container.kill()
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())

    async def finished(self) -> None:
        await asyncio.gather(self._work, *([self._stopping] if self._stopping else []), return_exceptions=True)

    def signal(self, container: str | None, number: int) -> None:
        """Sends a signal to process 1 of a container; of the only one where `container` is None."""
        self._running[container or next(iter(self._running))].signal(number)

    # ---- inside ----

    def _all(self) -> Iterator[dict[str, Any]]:
        yield from self.spec.get("initContainers", [])
        yield from self.spec["containers"]

    async def _run(self) -> None:
        try:
            self.publish()
            codes = await self._run_containers()
            self._phase = "Failed" if any(codes) or not codes else "Succeeded"
        finally:
            for container in self._running.values():
                container.kill()
            self.done = True
            self.publish()
            self._kubelets.network.unplug(self.plug)
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _run_containers(self) -> list[int]:
        """Runs the pod; the exit codes of its containers."""
        sidecars = []
        for spec in self.spec.get("initContainers", []):
            if spec.get("restartPolicy") == "Always":
                sidecars.append(asyncio.create_task(self._run_container(spec, "Always")))
                continue
            code = await self._run_container(spec, "Never" if self._policy() == "Never" else "OnFailure")
            if code != 0 or self._stopping:
                return [code or 1]
        codes = await asyncio.gather(*(self._run_container(spec, self._policy()) for spec in self.spec["containers"]))
        for spec in self.spec.get("initContainers", []):
            if spec["name"] in self._running:
                self._running[spec["name"]].kill()
        for sidecar in sidecars:
            sidecar.cancel()
        return codes

    def _policy(self) -> str:
        return str(self.spec.get("restartPolicy", "Always"))

    async def _run_container(self, spec: dict[str, Any], policy: str) -> int:
        """Runs a container until it is not to be started again; its last exit code."""
        name, restarts = spec["name"], 0
        while True:
            try:
                container = await self._start(spec)
            except CannotStart as error:
                if not await self._wait_for_repair(name, error):
                    return 137
                continue
            begin = now()
            self._statuses[name] |= {
                "state": {"running": {"startedAt": begin}}, "ready": True, "started": True, "restartCount": restarts,
            }  # fmt: skip
            started = [
                status for status in self._statuses.values() if status["started"] or "terminated" in status["state"]
            ]
            if len(started) == len(self._statuses):
                self._phase = "Running"
            self.publish()
            code = await container.ended()
            del self._running[name]
            ended = {
                "exitCode": code,
                "reason": "Completed" if code == 0 else "Error",
                "startedAt": begin,
                "finishedAt": now(),
            }
            message = container.termination_message()
            ended |= {"message": message} if message else {}
            self._statuses[name] |= {"state": {"terminated": ended}, "ready": False, "started": False}
            self.publish()
            again = policy == "Always" or (policy == "OnFailure" and code != 0)
            if not again or self._stopping:
                return code
            restarts += 1
            self._statuses[name] |= {"lastState": {"terminated": ended}, "restartCount": restarts}
            await asyncio.sleep(_RESTART_PAUSE_S * min(2**restarts, 30))
            if self._stopping:
                return code

    async def _wait_for_repair(self, name: str, error: CannotStart) -> bool:
        """Says why the container cannot start, and waits: False when the pod is to go."""
        if self._statuses[name]["state"].get("waiting", {}).get("reason") != error.reason:
            self._statuses[name] = _waiting(name, error.reason, str(error))
            self._kubelets.event(self.pod, "Failed", str(error), "Warning")
            self.publish()
        await asyncio.sleep(_RESTART_PAUSE_S)
        return self._stopping is None

    async def _start(self, spec: dict[str, Any]) -> Container:
        if spec.get("image") in self._kubelets.image.missing:
            raise CannotStart("ImagePullBackOff", f'Back-off pulling image "{spec["image"]}"')
        context = (self.spec.get("securityContext") or {}) | (spec.get("securityContext") or {})
        if context.get("runAsNonRoot") and not context.get("runAsUser"):
            raise CannotStart("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")
        runs = self._kubelets.containers.setdefault((self.name, spec["name"]), [])
        folder = self.folder / f"{spec['name']}-{len(runs)}"
        mounts, environ = list(self._mounts(spec, context)), self._environ(spec)
        folder.mkdir(exist_ok=True)
        container = Container(folder, self.plug.netns, self.hostname, spec, context)
        if self._stopping:
            raise CannotStart("ContainerCreating", "the pod is being deleted")
        await container.start(self._kubelets.image, mounts, environ)
        runs.append(container)
        self._running[spec["name"]] = container
        return container

    async def _stop(self) -> None:
        if self._deadline > 0.0:
            for name, container in list(self._running.items()):
                hook = ((container.spec.get("lifecycle") or {}).get("preStop") or {}).get("exec")
                if hook:
                    await container.execute(hook["command"], max(self._deadline - time.monotonic(), 0.1))
                if name in self._running:
                    container.signal(signal.SIGTERM)
            self._kubelets.event(self.pod, "Killing", "Stopping container")
            self.publish()
        while not self._work.done() and time.monotonic() < self._deadline:
            await asyncio.wait([self._work], timeout=0.1)
        while not self._work.done():
            for container in list(self._running.values()):
                container.kill()
            await asyncio.wait([self._work], timeout=0.1)

    # ---- files and variables ----

    def _mounts(self, spec: dict[str, Any], context: dict[str, Any]) -> Iterator[Mount]:
        # Names that do not stand in the file do not exist: a lookup must not wait for a server that is not there.
        files = {
            "hostname": self.hostname,
            "resolv.conf": "",
            "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files",
        }
        yield Mount(self.hosts, "/etc/hosts")
        for name, text in files.items():
            (self.folder / name).write_text(text + "\n")
            yield Mount(self.folder / name, f"/etc/{name}")
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        for place in spec.get("volumeMounts", []):
            volume = volumes[place["name"]]
            memory = (volume.get("emptyDir") or {}).get("medium") == "Memory"
            if memory and place["mountPath"] == "/dev/shm":
                size = volume["emptyDir"].get("sizeLimit")
                yield Mount(None, place["mountPath"], mode=0o1777, size=str(int(quantity(size))) if size else "")
                continue
            source = self._volume(volume, context.get("fsGroup"))
            read_only = bool(place.get("readOnly")) or "secret" in volume or "configMap" in volume
            yield Mount(source / place.get("subPath", ""), place["mountPath"], read_only)

    def _volume(self, volume: dict[str, Any], group: int | None) -> Path:
        folder = self.folder / f"volume-{volume['name']}"
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "persistentVolumeClaim" in volume:  # ReadWriteMany: one folder for all pods
            folder = self._kubelets.folder.parent / f"claim-{volume['persistentVolumeClaim']['claimName']}"
        if folder.exists():
            return folder
        if "secret" in volume or "configMap" in volume:
            source = volume.get("secret") or volume.get("configMap")
            found = self._data(
                "secrets" if "secret" in volume else "configmaps", source.get("secretName") or source.get("name")
            )
            _project(folder, found, source, group)
        else:
            folder.mkdir()
            folder.chmod(0o777 if group is None else 0o2777)
            if group is not None:
                os.chown(folder, 0, group)
        return folder

    def _data(self, plural: str, name: str) -> dict[str, bytes]:
        found = self._kubelets.store.find(plural, self.namespace, name)
        if found is None:
            raise CannotStart("CreateContainerConfigError", f'{plural[:-1]} "{name}" not found')
        text = {key: value.encode() for key, value in (found.get("stringData") or {}).items()}
        if plural == "configmaps":
            return {key: value.encode() for key, value in (found.get("data") or {}).items()}
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()} | text

    def _environ(self, spec: dict[str, Any]) -> dict[str, str]:
        environ = {
            "HOSTNAME": self.hostname,
            "KUBERNETES_SERVICE_HOST": network.GATEWAY,
            "KUBERNETES_SERVICE_PORT": "443",
        }
        for source in spec.get("envFrom", []):
            kind = "secretRef" if "secretRef" in source else "configMapRef"
            data = self._data("secrets" if kind == "secretRef" else "configmaps", source[kind]["name"])
            environ |= {source.get("prefix", "") + key: value.decode() for key, value in data.items()}
        for variable in spec.get("env", []):
            value = self._value(variable, spec, environ)
            if value is not None:
                environ[variable["name"]] = value
        return environ

    def _value(self, variable: dict[str, Any], spec: dict[str, Any], environ: dict[str, str]) -> str | None:
        source = variable.get("valueFrom") or {}
        for kind, plural in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
            if kind in source:
                data = self._data(plural, source[kind]["name"])
                if source[kind]["key"] not in data and not source[kind].get("optional"):
                    raise CannotStart("CreateContainerConfigError", f"couldn't find key {source[kind]['key']}")
                found = data.get(source[kind]["key"])
                return None if found is None else found.decode()
        if "fieldRef" in source:
            return self._field(source["fieldRef"]["fieldPath"])
        if "resourceFieldRef" in source:
            kind, _, resource = source["resourceFieldRef"]["resource"].partition(".")
            return str(int(quantity((spec.get("resources") or {}).get(kind, {}).get(resource, "0"))))
        return expand(variable.get("value", ""), environ)

    def _field(self, path: str) -> str:
        metadata = self.pod["metadata"]
        for kind in ("labels", "annotations"):
            if path.startswith(f"metadata.{kind}['"):
                return str((metadata.get(kind) or {}).get(path.split("'")[1], ""))
        fields = {
            "metadata.name": self.name, "metadata.namespace": self.namespace, "metadata.uid": metadata["uid"],
            "spec.nodeName": self.node, "spec.serviceAccountName": self.spec.get("serviceAccountName", "default"),
            "status.podIP": self.address, "status.podIPs": self.address, "status.hostIP": network.GATEWAY,
        }  # fmt: skip
        return str(fields[path])


def _project(folder: Path, data: dict[str, bytes], source: dict[str, Any], group: int | None) -> None:
    """Writes files as kubelet does: behind the links ..data -> ..TIME, and readable by the pod's fsGroup if it has one,
    whatever defaultMode says."""
    inner = folder / "..2026_01_01"
    inner.mkdir(parents=True)
    if group is not None:
        for part in (folder, inner):
            os.chown(part, 0, group)
            part.chmod(0o2755)
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    for item in items:
        path = inner / item["path"]
        path.write_bytes(data[item["key"]])
        mode = item.get("mode", source.get("defaultMode", 0o644))
        if group is not None:
            os.chown(path, 0, group)
            mode |= 0o440
        path.chmod(mode)
        (folder / item["path"]).symlink_to(Path("..data", item["path"]))
    (folder / "..data").symlink_to(inner.name)


def _waiting(name: str, reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    return {
        "name": name, "state": state, "lastState": {}, "ready": False, "started": False, "restartCount": 0,
        "image": "", "imageID": "",
    }  # fmt: skip


def quantity(text: str) -> float:
    """A quantity of Kubernetes as a number: 500m, 2, 8Gi."""
    units = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    text = str(text)
    unit = text.lstrip("0123456789.")
    return float(text[: len(text) - len(unit)]) * units.get(unit, 1)


def _resources(pod: Object) -> set[str]:
    found: set[str] = set()
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        found |= set(resources.get("requests") or {}) | set(resources.get("limits") or {})
    return found


def _requested(pod: Object, resource: str) -> float:
    if resource == "pods":
        return 1.0
    total = 0.0
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        amounts = (resources.get("limits") or {}) | (resources.get("requests") or {})
        total += quantity(amounts.get(resource, "0"))
    return total
