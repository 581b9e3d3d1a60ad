"""The options of jobs on Kubernetes, besides those of every job: checked values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfcollective.launcher import TIMING, ConfigError, check_timeout, platform_options
from tfcollective_launchers.kubernetes import names

_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i?|[eE][0-9]+)?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TOLERATION = re.compile(rf"(?P<key>[^=:]+)(=(?P<value>[^:]*))?(:(?P<effect>{'|'.join(_EFFECTS)}))?")
_VOLUME = re.compile(r"(?P<kind>[a-z]+)(/(?P<name>[^:]+))?:(?P<path>/[^:]*)(:(?P<access>ro|rw))?")
_VOLUMES = ("pvc", "configmap", "secret", "emptydir")
_ENV_FROM = re.compile(r"(?P<kind>secret|configmap)/(?P<name>.+)")
_MOST_SECONDS = 2**31 - 1  # that Kubernetes takes
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_USER = re.compile(r"(?P<user>[0-9]{1,9})(:(?P<group>[0-9]{1,9}))?")
_LISTS = ("image_pull_secrets", "volumes", "env_from", "node_selector", "tolerations", "labels", "annotations")


@dataclass(frozen=True)
class Volume:
    """A volume and where it is mounted: ``kind`` is one of pvc, configmap, secret and emptydir; ``source`` its name."""

    kind: str
    source: str
    path: str
    read_only: bool


@dataclass(frozen=True)
class Toleration:
    """A taint that the pods tolerate; ``value`` None: any; ``effect`` None: all."""

    key: str
    value: str | None
    effect: str | None


@dataclass(frozen=True)
class KubernetesOptions:
    """The platform's settings. All texts are written as on the command line.

    Attributes:
        image: the image of all pods: with tfcollective, the same version as here, and what the ranks run.
        name: what the job is called; the names of its objects begin with it.
        namespace: where it runs; None: the context's, or ``default``.
        image_pull_policy: ``Always``, ``IfNotPresent`` or ``Never``; None: the cluster's default.
        image_pull_secrets: names of Secrets for the image's registry.
        cpus: processors of each pod, as a quantity (``4``, ``500m``).
        memory: of each pod, as a quantity (``8Gi``); also its limit.
        gpus: of each pod.
        gpu_resource: the resource that they are.
        shm: the size of ``/dev/shm``, in memory; it counts as memory of the pod.
        procs_per_pod: how many ranks a pod runs.
        volumes: ``pvc/NAME:/path[:ro]``, ``configmap/NAME:/path``, ``secret/NAME:/path``, ``emptydir:/path``.
        env_from: ``secret/NAME`` or ``configmap/NAME``, all of whose keys become variables.
        node_selector: ``LABEL=VALUE`` that nodes need to have.
        tolerations: ``KEY[=VALUE][:EFFECT]`` of taints that nodes may have.
        service_account: of the pods; None: the namespace's default, and no token in the pods.
        priority_class: of the pods.
        run_as: ``UID`` or ``UID:GID`` of all processes; 0 is root.
        labels: ``KEY=VALUE`` for all objects and pods.
        annotations: ``KEY=VALUE`` for all pods.
        queue: the local queue of Kueue's.
        active_deadline: how long (s) the job may run; None: without a limit.
        ttl: how long (s) a job that has ended stays there; None: a day.
        allocation_timeout: how long (s) to wait until all pods that the job starts with are there.
        detach: whether to return as soon as the job runs; it does not end with the submitter then.
        kubeconfig: the file that says where the cluster is; None: ``KUBECONFIG``, ``~/.kube/config``, or the pod that
            this process runs in.
        context: its context; None: the current one.
        direct: whether pods can be reached from here; None: only where this process runs in a pod. Else connections
            lead through the API server, as those of ``kubectl port-forward`` do.
        kind: what a printed manifest consists of.
        key_secret: the Secret with the job key that a printed manifest names; None: ``NAME-key``.
    """

    image: str = ""
    name: str = "tfcollective"
    namespace: str | None = None
    image_pull_policy: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    cpus: str | None = None
    memory: str | None = None
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    shm: str = "1Gi"
    procs_per_pod: int = 1
    volumes: tuple[str, ...] = ()
    env_from: tuple[str, ...] = ()
    node_selector: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()
    service_account: str | None = None
    priority_class: str | None = None
    run_as: str = "1000"
    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    queue: str | None = None
    active_deadline: float | None = None
    ttl: float | None = None
    allocation_timeout: float = TIMING.allocation
    detach: bool = False
    kubeconfig: str | None = None
    context: str | None = None
    direct: bool | None = None
    kind: str = "job"
    key_secret: str | None = None

    @classmethod
    def from_platform(cls, platform: Mapping[str, Any]) -> KubernetesOptions:
        """Reads what a job says; ConfigError names what cannot be used."""
        lists = {name: platform[name] for name in _LISTS if platform.get(name) is not None}
        lists = {name: (value,) if isinstance(value, str) else tuple(value) for name, value in lists.items()}
        return platform_options(cls, {**platform, **lists}, "kubernetes")

    def __post_init__(self) -> None:
        if not self.image:
            raise ConfigError("--image is missing: it names the container image of the pods, with tfcollective in it")
        if self.image != self.image.strip() or " " in self.image:
            raise ConfigError(f"--image: expected the name of a container image for the pods, got {self.image!r}")
        names.check_service_name("--job-name", self.name)
        for option, value, check in self._names():
            if value is not None:
                check(option, value)
        for option, quantity in (("--cpus", self.cpus), ("--memory", self.memory), ("--shm", self.shm)):
            if quantity is not None and not _QUANTITY.fullmatch(quantity):
                raise ConfigError(f"{option}: expected a quantity such as 4, 500m or 8Gi, got {quantity!r}")
        for option, number, least in (("--gpus", self.gpus, 0), ("--procs-per-pod", self.procs_per_pod, 1)):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise ConfigError(f"{option}: expected {least} or more, got {number!r}")
        self._check_seconds()
        self._check_choices()
        paths = [volume.path for volume in self.mounted]
        twice = sorted({path for path in paths if paths.count(path) > 1 or path in names.TAKEN})
        if twice:
            raise ConfigError(f"--volume: {twice[0]} is mounted twice")
        # Everything that is a text of a form of its own is read once, for its errors.
        for read in (self.tolerated, self.variables_from, self.selected, self.labelled, self.annotated, self.user):
            assert read is not None

    def _names(self) -> Sequence[tuple[str, str | None, Callable[[str, str], None]]]:
        return (
            ("--namespace", self.namespace, names.check_label),
            ("--service-account", self.service_account, names.check_subdomain),
            ("--priority-class", self.priority_class, names.check_subdomain),
            ("--queue", self.queue, names.check_subdomain),
            ("--key-secret", self.key_secret, names.check_subdomain),
            ("--gpu-resource", self.gpu_resource, names.check_qualified),
            *(("--image-pull-secret", one, names.check_subdomain) for one in self.image_pull_secrets),
        )

    def _check_seconds(self) -> None:
        if self.allocation_timeout is not None:
            check_timeout("--allocation-timeout", self.allocation_timeout)
        for option, value in (("--active-deadline", self.active_deadline), ("--ttl", self.ttl)):
            if value is not None:
                check_timeout(option, value, _MOST_SECONDS)

    def _check_choices(self) -> None:
        if self.image_pull_policy not in (None, *_PULL_POLICIES):
            raise ConfigError(
                f"--image-pull-policy: expected one of {', '.join(_PULL_POLICIES)}, got {self.image_pull_policy!r}"
            )

    @property
    def mounted(self) -> tuple[Volume, ...]:
        """The volumes."""
        return tuple(map(_volume, self.volumes))

    @property
    def tolerated(self) -> tuple[Toleration, ...]:
        """The tolerations."""
        return tuple(map(_toleration, self.tolerations))

    @property
    def variables_from(self) -> tuple[tuple[str, str], ...]:
        """Kind and name of what variables are taken from."""
        return tuple(map(_variables_from, self.env_from))

    @property
    def selected(self) -> dict[str, str]:
        """The labels that nodes need to have."""
        return _pairs("--node-selector", self.node_selector, names.check_label_value)

    @property
    def labelled(self) -> dict[str, str]:
        """The labels."""
        return _pairs("--label", self.labels, names.check_label_value)

    @property
    def annotated(self) -> dict[str, str]:
        """The annotations."""
        return _pairs("--annotation", self.annotations, None)

    @property
    def user(self) -> tuple[int, int]:
        """User and group of all processes."""
        match = _USER.fullmatch(self.run_as)
        if match is None:
            raise ConfigError(f"--run-as: expected UID or UID:GID, got {self.run_as!r}")
        return int(match["user"]), int(match["group"] or match["user"])


def _volume(text: str) -> Volume:
    match = _VOLUME.fullmatch(text)
    if match is None or match["kind"] not in _VOLUMES:
        raise ConfigError(
            f"--volume: expected pvc/NAME:/PATH[:ro], configmap/NAME:/PATH, secret/NAME:/PATH or emptydir:/PATH, got "
            f"{text!r}"
        )
    kind, name = match["kind"], match["name"] or ""
    if (kind == "emptydir") == bool(name):
        raise ConfigError(f"--volume {text}: an emptydir has no name, and every other volume needs one")
    if name:
        names.check_subdomain(f"--volume {text}", name)
    path = match["path"].rstrip("/")
    if not path:
        raise ConfigError(f"--volume {text}: nothing can be mounted at /")
    return Volume(kind, name, path, match["access"] == "ro" or kind in ("configmap", "secret"))


def _toleration(text: str) -> Toleration:
    match = _TOLERATION.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--toleration: expected KEY, KEY=VALUE or either with :EFFECT ({', '.join(_EFFECTS)}), got {text!r}"
        )
    names.check_qualified("--toleration", match["key"])
    return Toleration(match["key"], match["value"], match["effect"])


def _variables_from(text: str) -> tuple[str, str]:
    match = _ENV_FROM.fullmatch(text)
    if match is None:
        raise ConfigError(f"--env-from: expected secret/NAME or configmap/NAME, got {text!r}")
    names.check_subdomain("--env-from", match["name"])
    return match["kind"], match["name"]


def _pairs(option: str, texts: Sequence[str], check: Callable[[str, str], None] | None) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{option}: expected KEY=VALUE, got {text!r}")
        names.check_qualified(option, key)
        if check is not None:
            check(f"{option} {key}", value)
        pairs[key] = value
    return pairs
