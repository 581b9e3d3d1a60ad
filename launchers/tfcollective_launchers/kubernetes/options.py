"""The options of jobs on Kubernetes, besides those of every job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tfcollective.launcher import (
    FLAG,
    LINE,
    MANIFESTS,
    TIMING,
    VARIABLES,
    ConfigError,
    Kind,
    Options,
    choice,
    count,
    form,
    line,
    option,
    seconds,
    shared_options,
)
from tfcollective_launchers.kubernetes import names

#: What a manifest may consist of, the usual kind first.
KINDS = ("job", "jobset", "trainjob", "tfjob", "mpijob")
own = partial(option, "Kubernetes")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i?|[eE][0-9]+)?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TOLERATION = re.compile(rf"(?P<key>[^=:]+)(=(?P<value>[^:]*))?(:(?P<effect>{'|'.join(_EFFECTS)}))?")
_VOLUME = re.compile(r"(?P<kind>[a-z]+)(/(?P<name>[^:]+))?:(?P<path>/[^:]*)(:(?P<access>ro|rw))?")
_VOLUMES = ("pvc", "configmap", "secret", "emptydir")
_ENV_FROM = re.compile(r"(?P<kind>secret|configmap)/(?P<name>.+)")
_MOST_SECONDS = 2**31 - 1  # that Kubernetes takes
_USER = re.compile(r"(?P<user>[0-9]{1,9})(:(?P<group>[0-9]{1,9}))?")


@dataclass(frozen=True)
class Volume:
    """A volume and where it is mounted: ``kind`` is one of pvc, configmap, secret and emptydir; ``source`` its name."""

    kind: str
    source: str
    path: str
    read_only: bool

    @classmethod
    def parse(cls, text: str) -> Volume:
        """Reads ``KIND/NAME:/PATH[:ro]``."""
        match = _VOLUME.fullmatch(text)
        if match is None or match["kind"] not in _VOLUMES:
            raise ConfigError(
                f"expected pvc/NAME:/PATH[:ro], configmap/NAME:/PATH, secret/NAME:/PATH or emptydir:/PATH, got {text!r}"
            )
        kind, name = match["kind"], match["name"] or ""
        if (kind == "emptydir") == bool(name):
            raise ConfigError(f"{text}: an emptydir has no name, and every other volume needs one")
        if name:
            names.check_subdomain(name)
        path = match["path"].rstrip("/")
        if not path:
            raise ConfigError(f"{text}: nothing can be mounted at /")
        return cls(kind, name, path, match["access"] == "ro" or kind in ("configmap", "secret"))


@dataclass(frozen=True)
class Toleration:
    """A taint that the pods tolerate; ``value`` None: any; ``effect`` None: all."""

    key: str
    value: str | None
    effect: str | None

    @classmethod
    def parse(cls, text: str) -> Toleration:
        """Reads ``KEY[=VALUE][:EFFECT]``."""
        match = _TOLERATION.fullmatch(text)
        if match is None:
            raise ConfigError(f"expected KEY, KEY=VALUE or either with :EFFECT ({', '.join(_EFFECTS)}), got {text!r}")
        names.check_qualified(match["key"])
        return cls(match["key"], match["value"], match["effect"])


@dataclass(frozen=True)
class VariablesFrom:
    """A Secret or a ConfigMap all of whose keys become variables: ``kind`` is secret or configmap."""

    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> VariablesFrom:
        """Reads ``KIND/NAME``."""
        match = _ENV_FROM.fullmatch(text)
        if match is None:
            raise ConfigError(f"expected secret/NAME or configmap/NAME, got {text!r}")
        names.check_subdomain(match["name"])
        return cls(match["kind"], match["name"])


@dataclass(frozen=True)
class User:
    """The user and the group of all processes."""

    user: int
    group: int

    @classmethod
    def read(cls, given: Any) -> Any:
        """Reads ``UID[:GID]``."""
        match = _USER.fullmatch(given) if isinstance(given, str) else None
        return given if match is None else cls(int(match["user"]), int(match["group"] or match["user"]))


def _check_image(text: str) -> None:
    if text != text.strip() or " " in text:
        raise ConfigError(f"expected the name of a container image for the pods, got {text!r}")


def _check_quantity(text: str) -> None:
    if not _QUANTITY.fullmatch(text):
        raise ConfigError(f"expected a quantity such as 4, 500m or 8Gi, got {text!r}")


def _unfit_user(value: Any) -> str | None:
    return None if isinstance(value, User) else f"expected UID or UID:GID, got {value!r}"


def _pairs(check: Callable[[str], object] = str) -> Kind:
    """Values by qualified names."""

    def problem(value: Any) -> str | None:
        for key, text in value.items():
            try:
                names.check_qualified(key)
            except ConfigError as error:
                return str(error)
            try:
                check(text)
            except ConfigError as error:
                return f"{key}: {error}"
        return None

    return Kind(lambda given: VARIABLES.read((given,) if isinstance(given, str) else given), problem, "K=V", many=True)


_LABELS, _ANNOTATIONS = _pairs(names.check_label_value), _pairs()
_SUBDOMAIN, _QUANTITIES = line(names.check_subdomain, "NAME"), line(_check_quantity, "SIZE")


@dataclass(frozen=True)
class KubernetesOptions(Options):
    """The options for a job's objects and for access to the cluster."""

    image: str = own(
        line(_check_image, "IMAGE"), "Image of all pods, with tfcollective in it. Required.", "--image", ...
    )
    queue: str | None = shared_options.queue(_SUBDOMAIN, more="On Kubernetes it is a local queue of Kueue's.")
    name: str = shared_options.job_name(line(names.check_service_name))
    image_pull_policy: str | None = own(
        choice("Always", "IfNotPresent", "Never"),
        "Always, IfNotPresent or Never.",
        "--image-pull-policy",
        metavar="NAME",
        default="the cluster's default",
    )
    image_pull_secrets: tuple[str, ...] = own(
        line(names.check_subdomain, "NAME", many=True),
        "Secret for the registry; may be repeated.",
        "--image-pull-secret",
        (),
    )
    namespace: str | None = own(
        line(names.check_label, "NAME"), "Namespace of the job.", "--namespace", default="the context's"
    )
    procs_per_pod: int = own(count(1), "Ranks in each pod.", "--procs-per-pod", 1)
    cpus: str | None = own(line(_check_quantity, "N"), "Processors of each pod: 4, 500m.", "--cpus")
    memory: str | None = own(_QUANTITIES, "Memory of each pod, and its limit: 8Gi.", "--memory")
    gpus: int = own(count(0), "GPUs of each pod.", "--gpus", 0)
    gpu_resource: str = own(
        line(names.check_qualified, "NAME"), "Extended resource name for GPUs.", "--gpu-resource", "nvidia.com/gpu"
    )
    shm: str = own(_QUANTITIES, "Size of /dev/shm, part of the pod's memory.", "--shm", "1Gi")
    volumes: tuple[Volume, ...] = own(
        form(Volume, Volume.parse, "KIND/NAME:PATH"),
        "Volume: pvc/NAME:/PATH[:ro], configmap/NAME:/PATH, secret/NAME:/PATH or emptydir:/PATH; may be repeated.",
        "--volume",
        (),
    )
    env_from: tuple[VariablesFrom, ...] = own(
        form(VariablesFrom, VariablesFrom.parse, "KIND/NAME"),
        "Variables from secret/NAME or configmap/NAME; repeat.",
        "--env-from",
        (),
    )
    node_selector: Mapping[str, str] = own(_LABELS, "Label that nodes need; may be repeated.", "--node-selector", {})
    tolerations: tuple[Toleration, ...] = own(
        form(Toleration, Toleration.parse, "K[=V][:EFFECT]"),
        "Taint that nodes may have; may be repeated.",
        "--toleration",
        (),
    )
    service_account: str | None = own(
        _SUBDOMAIN,
        "Service account of the pods.",
        "--service-account",
        default="none is used",
        more="Without one the pods have no token.",
    )
    priority_class: str | None = own(_SUBDOMAIN, "Priority class of the pods.", "--priority-class")
    run_as: User = own(  # noqa: RUF009  it makes a field
        Kind(User.read, _unfit_user, "UID[:GID]"),
        "User of all processes; 0 is root.",
        "--run-as",
        User(1000, 1000),
        default="1000",
    )
    labels: Mapping[str, str] = own(_LABELS, "Label of all objects and pods; may be repeated.", "--label", {})
    annotations: Mapping[str, str] = own(_ANNOTATIONS, "Annotation of all pods; may be repeated.", "--annotation", {})
    active_deadline: float | None = own(
        seconds(most=_MOST_SECONDS), "Limit for the whole job.", "--active-deadline", default="none"
    )
    ttl: float | None = own(
        seconds(most=_MOST_SECONDS), "Time for which a job that has ended is kept.", "--ttl", default="a day"
    )
    kubeconfig: str | None = own(
        LINE,
        "File that describes the cluster.",
        "--kubeconfig",
        metavar="F",
        default="KUBECONFIG, ~/.kube/config",
        more="In a pod, the cluster is the pod's.",
    )
    context: str | None = own(LINE, "Context of that file.", "--context", metavar="NAME", default="the current one")
    direct: bool | None = own(
        FLAG,
        "Connect to pods by their addresses.",
        "--direct",
        default="through the API server",
        more="In a pod, this is the default.",
    )
    allocation_timeout: float = shared_options.allocation_timeout(value=TIMING.allocation)
    detach: bool = shared_options.detach()
    kind: str = option(
        MANIFESTS,
        choice(*KINDS),
        "What the manifest consists of.",
        "--kind",
        KINDS[0],
        more="`job` is Kubernetes' own Jobs; `trainjob` comes with its runtime.",
    )
    key_secret: str | None = option(
        MANIFESTS, _SUBDOMAIN, "Secret that has the job key.", "--key-secret", default="JOB-NAME-key"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        paths = [volume.path for volume in self.volumes]
        twice = sorted({path for path in paths if paths.count(path) > 1 or path in names.TAKEN})
        if twice:
            raise ConfigError(f"--volume: {twice[0]} is mounted twice")
