"""The network of the cluster: a bridge, and a network namespace with an address for each pod."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kubernetes_testbed.objects import Object, condition, labels_match

_BRIDGE, _NETWORK = "podbr", "10.214"
GATEWAY = f"{_NETWORK}.0.1"


def ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Plug:
    """A pod's place in the network."""

    netns: str
    link: str
    address: str


class Network:
    """The bridge and who is plugged in. No address is used twice: no peer meets an old pod's name at a new address.
    `default_route`: whether pods have a way out, as most have."""

    def __init__(self, default_route: bool = True) -> None:
        self._count, self._default_route = 1, default_route
        ip("link", "add", _BRIDGE, "type", "bridge")
        ip("address", "add", f"{GATEWAY}/16", "dev", _BRIDGE)
        ip("link", "set", _BRIDGE, "up")

    def plug(self) -> Plug:
        self._count += 1
        address = f"{_NETWORK}.{self._count // 250}.{self._count % 250 + 2}"
        plug = Plug(f"pod{self._count}", f"vpod{self._count}", address)
        ip("netns", "add", plug.netns)
        ip("link", "add", plug.link, "type", "veth", "peer", "name", "eth0", "netns", plug.netns)
        ip("link", "set", plug.link, "master", _BRIDGE, "up")
        ip("-n", plug.netns, "address", "add", f"{address}/16", "dev", "eth0")
        ip("-n", plug.netns, "link", "set", "lo", "up")
        ip("-n", plug.netns, "link", "set", "eth0", "up")
        if self._default_route:
            ip("-n", plug.netns, "route", "add", "default", "via", GATEWAY)
        return plug

    def cut(self, plug: Plug, whole: bool = False) -> None:
        """Cuts a pod off, or connects it again: nothing that it sends arrives, and no side learns of it."""
        ip("link", "set", plug.link, "up" if whole else "down", check=False)

    def unplug(self, plug: Plug) -> None:
        ip("link", "delete", plug.link, check=False)
        ip("netns", "delete", plug.netns, check=False)

    def close(self) -> None:
        ip("link", "delete", _BRIDGE, check=False)


def names(pods: Iterable[Object], services: Iterable[Object]) -> list[tuple[str, list[str]]]:
    """What DNS would say: for each address the names of headless Services that lead to it. A pod has its own name once
    it is ready, or from the beginning where the Service says publishNotReadyAddresses."""
    pods, found = list(pods), []
    for service in services:
        spec, name, namespace = service["spec"], service["metadata"]["name"], service["metadata"]["namespace"]
        selector = ",".join(f"{key}={value}" for key, value in (spec.get("selector") or {}).items())
        if spec.get("clusterIP") != "None" or not selector:
            continue
        for pod in pods:
            address, mine = pod["status"].get("podIP"), pod["metadata"]["namespace"] == namespace
            there = spec.get("publishNotReadyAddresses") or (
                condition(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]
            )
            ended = pod["status"].get("phase") in ("Succeeded", "Failed")
            if not (address and mine and there and not ended and labels_match(pod, selector)):
                continue
            whole = [f"{name}.{namespace}.svc.cluster.local", f"{name}.{namespace}.svc", f"{name}.{namespace}", name]
            own = pod["spec"].get("hostname")
            each = [f"{own}.{text}" for text in whole] if own and pod["spec"].get("subdomain") == name else []
            found.append((address, [*each, *whole]))
    return found


def write_hosts(path: Path, lines: Iterable[str]) -> None:
    """Writes a pod's /etc/hosts in place: it is bind-mounted, and a new file would not be seen."""
    text = "\n".join(lines) + "\n"
    if path.read_text() != text:
        with path.open("r+") as file:
            file.write(text)
            file.truncate()
