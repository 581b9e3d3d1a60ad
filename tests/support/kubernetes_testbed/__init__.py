"""A Kubernetes of this machine: the REST API, and pods as processes. Needs Linux and root, and a network of its own.

    tools/own_network.sh pytest ... tests/kubernetes                  (`make test-kubernetes`)
    tools/own_network.sh python -m kubernetes_testbed COMMAND ...     (PYTHONPATH=tests/support): KUBECONFIG is set

    with Cluster(folder, image=Image(folders={"/app": scripts})) as cluster:
        cluster.apply(Path("job.yaml").read_text())
        assert cluster.wait_for_job("train") == "Complete"

It plays API server, Job controller, garbage collector, scheduler and kubelet. A pod has a network namespace with an
address on a bridge; each of its containers has mount, PID, UTS and IPC namespaces, a root folder with the programs of
this machine, /tmp and /dev/shm of its own, and nothing of the caller's environment. Names of headless Services stand in
/etc/hosts of all pods. What is not played: images, limits of resources, probes, network policies, admission webhooks,
Services with an address, stateful kinds. Times of Kubernetes that tests would wait for are shorter: a pod that failed
comes again after 0.1 s, 0.2 s ... in place of 10 s, 20 s ..."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import yaml
from aiohttp import web
from self_signed import self_signed
from time_limits import within

from kubernetes_testbed.api import Api
from kubernetes_testbed.containers import Image
from kubernetes_testbed.jobs import JobController
from kubernetes_testbed.network import Network
from kubernetes_testbed.objects import RESOURCES, ApiError, Object, Store, condition, set_condition
from kubernetes_testbed.pods import Kubelets

__all__ = ["ApiError", "Cluster", "Image", "missing", "this_python"]

_PROGRAMS = {"ip": "iproute2", "setpriv": "util-linux", "nsenter": "util-linux", "chroot": "coreutils"}
_PLURALS = {resource.kind: resource.plural for resource in RESOURCES.values()}
T = TypeVar("T")


def missing() -> str | None:
    """Why pods cannot run as processes here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "pods as processes need Linux and root"
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is missing: install {package}"
    if {name for _, name in socket.if_nameindex()} != {"lo"}:
        return "pods need a network of their own: make test-kubernetes, or tools/own_network.sh"
    return None


def this_python(**folders: Path) -> Image:
    """An image with this interpreter and what is installed for it, and `folders` under /NAME."""
    programs = Path(sys.prefix, "bin")
    shown = [Path(sys.prefix), *([Path(sys.base_prefix)] if sys.base_prefix != sys.prefix else [])]
    shown = [path for path in shown if not path.is_relative_to("/usr")]
    return Image(
        {f"/{name}": path for name, path in folders.items()}, shown, f"{programs}:/usr/local/bin:/usr/bin:/bin"
    )


class Cluster:
    """The cluster, while it is open. Its methods may be called from any thread; all its state belongs to one event loop
    on a thread of its own. `nodes` are allocatable resources by name of the node."""

    def __init__(
        self, folder: Path, image: Image | None = None, nodes: dict[str, dict[str, str]] | None = None,
        default_route: bool = True,
    ) -> None:  # fmt: skip
        self.folder, self.image = folder, image or this_python()
        self.kubeconfig = folder / "kubeconfig"
        self.authority = folder / "ca.crt"
        self.url = self.token = ""
        self._nodes = nodes or {"node-1": {"pods": "110"}, "node-2": {"pods": "110"}}
        self._default_route = default_route
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes", daemon=True)

    def __enter__(self) -> Cluster:
        self._thread.start()
        try:
            self._call(self._open())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            self.tell_what_happened()
        self._call(self._close())
        self._end_loop()

    # ---- what a person does ----

    def apply(self, *manifests: str | Object, namespace: str = "default") -> None:
        """Creates what the manifests (YAML, or objects) say. Raises :class:`ApiError` as the API would answer."""
        for manifest in manifests:
            documents = list(yaml.safe_load_all(manifest)) if isinstance(manifest, str) else [manifest]
            for item in filter(None, documents):
                place = (item.get("metadata") or {}).get("namespace", namespace)
                self._do(lambda item=item, place=place: self._api.create(_PLURALS[item["kind"]], place, item))

    def get(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        """The object, or None."""
        return self._do(lambda: self._store.find(_PLURALS[kind], namespace, name))

    def list(self, kind: str, labels: str = "", namespace: str | None = None) -> list[Object]:
        return self._do(lambda: self._store.list(_PLURALS[kind], namespace, labels))

    def delete(self, kind: str, name: str, propagation: str = "Background", grace_s: float | None = None) -> None:
        self._do(
            lambda: self._store.delete(
                _PLURALS[kind], self._store.get(_PLURALS[kind], "default", name), propagation, grace_s
            )
        )

    def scale(self, job: str, completions: int) -> None:
        """Gives an Indexed Job so many pods."""

        def change(item: Object) -> None:
            item["spec"] |= {"completions": completions, "parallelism": completions}

        self._do(lambda: self._store.update("jobs", "default", job, change))

    def pods(self, job: str, running: bool = True) -> list[Object]:
        """The pods of a Job: those that run and are not being deleted, or all."""
        pods = self.list("Pod", f"batch.kubernetes.io/job-name={job}")
        if running:
            pods = [
                pod
                for pod in pods
                if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            ]
        return sorted(pods, key=lambda pod: (pod["spec"].get("hostname") or "", pod["metadata"]["creationTimestamp"]))

    # ---- what a cluster does ----

    def evict(self, pod: str) -> None:
        """As when a node is drained: the condition DisruptionTarget, and the pod is deleted."""
        self._do(lambda: self._evict(self._store.get("pods", "default", pod)))

    def drain(self, node: str) -> None:
        """Lets no more pods come to a node, and evicts those that it has."""

        def cordon(item: Object) -> None:
            item["spec"]["unschedulable"] = True

        self._do(lambda: self._store.update("nodes", "", node, cordon))
        for pod in self.list("Pod"):
            if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                self.evict(pod["metadata"]["name"])

    def lose_node(self, node: str) -> None:
        """Cuts a node off: its pods run on, without any link, and the cluster hears no more of them."""
        self._do(lambda: self._kubelets.cut(node))
        self._do(
            lambda: self._store.update(
                "nodes", "", node, lambda item: set_condition(item, "Ready", "Unknown", "NodeStatusUnknown")
            )
        )

    def forget_node(self, node: str) -> None:
        """Removes a lost node from the cluster, as cloud providers do: its pods count as failed by disruption."""
        self._do(lambda: self._forget(node))

    def recover_node(self, node: str) -> None:
        """Brings a lost node back; what should no longer run there is ended."""
        self._do(lambda: self._kubelets.cut(node, whole=True))

    def add_node(self, node: str, **resources: str) -> None:
        self._do(lambda: self._store.create("nodes", "", _node(node, resources or {"pods": "110"})))

    def signal(self, pod: str, number: int = signal.SIGKILL, container: str | None = None) -> None:
        """Sends a signal to process 1 of a container: SIGKILL is what the kernel does when memory runs out."""
        uid = self._do(lambda: self._store.get("pods", "default", pod)["metadata"]["uid"])
        self._do(lambda: self._kubelets.sandboxes[uid].signal(container, number))

    def deny(self, verb: str, plural: str) -> None:
        """Takes a right away from the user: ``deny("create", "secrets")``."""
        self._do(lambda: self._api.denied.add((verb, plural)))

    def compact(self) -> None:
        """Makes the API server forget its history: every watch ends with 410 Gone."""
        self._do(lambda: self._store.compact())

    def interrupt(self) -> None:
        """Cuts every connection that watches or follows; a new one may come at once."""
        self._do(lambda: self._api.interrupt())

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """While it is open, the API server answers no request. Pods run on."""
        self._api.away = True
        self.interrupt()
        try:
            yield
        finally:
            self._api.away = False

    # ---- what a test sees ----

    def log(self, pod: str, container: str | None = None) -> str:
        """All that a pod has written, whether it still exists or not."""
        runs = self._do(lambda: [run for (name, own), runs in self._kubelets.containers.items() for run in runs
                                 if name == pod and container in (None, own)])  # fmt: skip
        return "".join(run.log.text() for run in runs)

    def logs(self, prefix: str = "") -> dict[str, str]:
        """What every pod has written, by name, of pods that are gone, too."""
        names = self._do(lambda: {name for name, _ in self._kubelets.containers if name.startswith(prefix)})
        return {name: self.log(name) for name in sorted(names)}

    def merged_log(self, prefix: str = "") -> str:
        """The lines of all these pods in the order in which they came."""

        def lines() -> list[tuple[str, bytes]]:
            found = (runs for (name, _), runs in self._kubelets.containers.items() if name.startswith(prefix))
            return sorted((line for runs in found for run in runs for line in run.log.lines), key=lambda one: one[0])

        return b"".join(line for _, line in self._do(lines)).decode(errors="replace")

    def wait_until(self, what: Callable[[], T], seconds: float = 60.0) -> T:
        """Waits until `what` gives something true, and returns it. Raises TimeoutError."""
        end = time.monotonic() + within(seconds)
        while not (found := what()):
            if time.monotonic() > end:
                self.tell_what_happened()
                raise TimeoutError(f"{what} is still {found!r}")
            time.sleep(0.05)  # the objects change on another thread
        return found

    def wait_for_job(self, name: str, seconds: float = 60.0) -> str:
        """Waits for the end of a Job: "Complete", or the reason why it has failed."""

        def end() -> str | None:
            job = self.get("Job", name)
            if job is None:
                return "Deleted"
            failed = condition(job, "Failed")
            return failed["reason"] if failed else "Complete" if condition(job, "Complete") else None

        return str(self.wait_until(end, seconds))

    def exit_codes(self, job: str) -> dict[str, list[int]]:
        """The exit codes of the Job's containers that have ended, by host name of the pod."""
        codes: dict[str, list[int]] = {}
        for pod in self.pods(job, running=False):
            for status in pod["status"].get("containerStatuses", []):
                if "terminated" in status["state"]:
                    host = pod["spec"].get("hostname") or pod["metadata"]["name"]
                    codes.setdefault(host, []).append(status["state"]["terminated"]["exitCode"])
        return codes

    def container_ends(self, prefix: str = "") -> dict[str, list[int]]:
        """The exit codes of all containers that have ended, by host name of the pod, of pods that are gone, too."""

        def ends() -> dict[str, list[int]]:
            found: dict[str, list[int]] = {}
            for (name, _), runs in self._kubelets.containers.items():
                codes = [run.exit_code for run in runs if run.exit_code is not None]
                if name.startswith(prefix) and codes:
                    found.setdefault(runs[0].hostname, []).extend(codes)
            return found

        return self._do(ends)

    def process_handles_sigterm(self, pod: str) -> bool:
        """Whether process 1 of the pod's newest container has a handler for SIGTERM."""
        return self._do(lambda: any(runs[-1].handles(signal.SIGTERM) for (name, _), runs
                                    in self._kubelets.containers.items() if name == pod))  # fmt: skip

    # ---- inside ----

    async def _open(self) -> None:
        pods = self.folder / "pods"
        pods.mkdir()
        for folder in (pods, *pods.parents):
            if (
                not folder.stat().st_mode & 0o001
                and folder.stat().st_uid == os.geteuid()
                and folder.is_relative_to(self.folder)
            ):
                folder.chmod(0o711)  # pods have users of their own
        self._store = Store()
        self._network = Network(self._default_route)
        self._kubelets = Kubelets(self._store, self._network, pods, self.image)
        self._api = Api(self._store, self._kubelets, self._evict)
        for name, resources in self._nodes.items():
            self._store.create("nodes", "", _node(name, resources))
        self._runner = web.AppRunner(self._api.application(), shutdown_timeout=0.5)
        await self._runner.setup()
        _, context = self_signed(self.folder)
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url, self.token = f"https://127.0.0.1:{port}", self._api.token
        self._write_kubeconfig()
        jobs = JobController(self._store)
        self._controllers = [asyncio.create_task(part.run()) for part in (jobs, self._kubelets)]

    async def _close(self) -> None:
        self._api.interrupt()
        for task in self._controllers:
            task.cancel()
        results = await asyncio.gather(*self._controllers, return_exceptions=True)
        await self._kubelets.close()
        await self._runner.cleanup()
        self._network.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _write_kubeconfig(self) -> None:
        server = {"server": self.url, "certificate-authority": str(self.authority)}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
        }  # fmt: skip
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(config))

    def _evict(self, pod: Object) -> None:
        self._disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")
        self._store.delete("pods", pod)

    def _disrupt(self, pod: Object, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        self._store.update(
            "pods", metadata["namespace"], metadata["name"],
            lambda item: set_condition(item, "DisruptionTarget", "True", reason, message),
        )  # fmt: skip

    def _forget(self, node: str) -> None:
        def fail(item: Object) -> None:
            item["status"]["phase"] = "Failed"

        for pod in self._store.list("pods"):
            if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                self._disrupt(pod, "DeletionByPodGC", "PodGC: node no longer exists")
                self._store.update("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], fail)
                self._store.delete("pods", pod, grace_s=0.0)
        self._store.remove("nodes", self._store.get("nodes", "", node))

    def _do(self, what: Callable[[], T]) -> T:
        async def call() -> T:
            return what()

        return self._call(call())

    def _call(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(within(60))

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(within(10))
        self._loop.close()

    def tell_what_happened(self) -> None:
        """Prints what pods there were, and what they wrote: pytest shows it with a test that failed."""
        for job in self.list("Job"):
            print("job", job["metadata"]["name"], json.dumps(job.get("status")))
        for pod in self.list("Pod"):
            print("pod", pod["metadata"]["name"], json.dumps(pod.get("status")))
        for event in self.list("Event"):
            print("event", event["involvedObject"]["name"], event["reason"], event["message"])
        for name, text in self.logs().items():
            print(f"---- {name}\n{text}")


def _node(name: str, resources: dict[str, str]) -> Object:
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {}, "status": {"allocatable": resources, "capacity": resources, "conditions": conditions},
    }  # fmt: skip
