"""The common parts of all kinds of manifests: labels, the pod template, the job key, what a failure means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfcollective.launcher import (
    OPTIONS,
    TIMING,
    ConfigError,
    ExitCode,
    JobSpec,
    UnsupportedError,
    gpu_variables,
    job_text,
    variable,
)
from tfcollective_launchers.kubernetes.names import KEY_DIRECTORY, SHARED_MEMORY
from tfcollective_launchers.kubernetes.options import KubernetesOptions, Toleration, Volume

Object = dict[str, Any]

CONTAINER = "train"
LAUNCHER = "launcher"
AGENTS = "agents"
PORT = 29477  # where the ranks meet: tfcollective's own default
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_DAY_S = 86400
_NAME, _INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
_COMPONENT, _BY = "app.kubernetes.io/component", "app.kubernetes.io/managed-by"
# Errors that come again: wrong usage or configuration, and errors of our own.
FINAL_CODES = (int(ExitCode.USAGE), int(ExitCode.INTERNAL))
#: The launcher's pod takes part in no training.
LAUNCHER_RESOURCES: Object = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}}
#: Options that processes without a launcher can be given, as variables.
_AS_VARIABLES = ("start_timeout", "op_timeout", "stall_warning", "transport", "port_range", "log_level")
# These say how many pods there are, or stand in the manifest itself.
_IN_MANIFEST = ("num_proc", "env", "grace", "max_restarts", "bucket_mb")


@dataclass(frozen=True)
class Wanted:
    """The job that a manifest describes.

    Attributes:
        spec: the job; its command is what runs in the image.
        options: the platform's settings.
    """

    spec: JobSpec
    options: KubernetesOptions

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.options.name

    @property
    def needs_launcher(self) -> tuple[str, ...]:
        """The reasons for a launcher in a pod of its own; empty: the pods, of one rank each, can meet without one."""
        chosen = [name for name in self.spec.chosen_options if name not in (*_AS_VARIABLES, *_IN_MANIFEST)]
        why = [OPTIONS[name].flags[0] for name in chosen]
        return (*why, *(("--procs-per-pod",) if self.options.procs_per_pod > 1 else ()))

    @property
    def pods(self) -> int:
        """The number of pods of the ranks at first."""
        return -(-self.spec.num_proc // self.options.procs_per_pod)

    @property
    def most_pods(self) -> int:
        """The largest number of pods of the ranks."""
        most = self.spec.num_proc if self.spec.bounds is None else self.spec.bounds.largest
        return -(-most // self.options.procs_per_pod)

    @property
    def restarts(self) -> int:
        """The number of times that the ranks may be started again after a failure."""
        return self.spec.max_restarts

    def check_gpus(self) -> None:
        """Raises ConfigError if the ranks of a pod need more GPUs than it has."""
        options = self.options
        try:
            gpu_variables(0, options.procs_per_pod, self.spec.rank_env, [""] * options.gpus)
        except ConfigError as error:
            raise ConfigError(f"--gpus {options.gpus}: in each pod, {error}") from error

    def check_without_launcher(self, known: Sequence[str] = ()) -> None:
        """Raises UnsupportedError if the job needs a launcher, which its kind has not; ``known`` are options that the
        kind understands by itself."""
        why = [option for option in self.needs_launcher if option not in known]
        if why:
            raise UnsupportedError(
                f"--kind {self.options.kind}: its pods are one rank each and have no launcher, which {why[0]} needs: "
                "use --kind job or --kind jobset"
            )


def labels_of(wanted: Wanted, component: str = "") -> dict[str, str]:
    """Labels of an object, or of the pods of one part of the job."""
    part = {_COMPONENT: component} if component else {}
    return {**selector_of(wanted), **part, _BY: "tfcollective", **wanted.options.labels}


def selector_of(wanted: Wanted) -> dict[str, str]:
    """The labels that select all pods of the job."""
    return {_NAME: "tfcollective", _INSTANCE: wanted.name}


def metadata_of(wanted: Wanted, name: str, *, queued: bool = False, component: str = "") -> Object:
    """Name, namespace and labels of an object; one that is ``queued`` waits for Kueue."""
    queue = {QUEUE_LABEL: wanted.options.queue} if queued and wanted.options.queue else {}
    space = {"namespace": wanted.options.namespace} if wanted.options.namespace else {}
    return {"name": name, **space, "labels": {**labels_of(wanted, component), **queue}}


def suspended(wanted: Wanted) -> Object:
    """Kueue lets it go when there is room for all of it."""
    return {"suspend": True} if wanted.options.queue else {}


def service_of(wanted: Wanted) -> Object:
    """The headless Service that gives each pod a name, from before it is ready: others wait for it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(wanted, wanted.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector_of(wanted),
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }


def job_of(wanted: Wanted, name: str, spec: Object, *, queued: bool = True, component: str = "") -> Object:
    """A Job of Kubernetes' own."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata_of(wanted, name, queued=queued, component=component),
        "spec": {
            **(suspended(wanted) if queued else {}),
            **spec,
        },
    }


def limits_of(wanted: Wanted) -> Object:
    """Returns how long a Job, or an object with the same fields, may run, and how long it stays when it has ended."""
    options = wanted.options
    deadline = {} if options.active_deadline is None else {"activeDeadlineSeconds": math.ceil(options.active_deadline)}
    return {**deadline, "ttlSecondsAfterFinished": math.ceil(_DAY_S if options.ttl is None else options.ttl)}


def failure_policy(action: str, codes: Sequence[int] = FINAL_CODES) -> Object:
    """A pod that the cluster has taken away does not count; what would fail again ends all at once."""
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {
                "action": action,
                "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(codes)},
            },
        ]
    }


def rank_variables(wanted: Wanted, meeting: str) -> list[Object]:
    """Variables of processes that meet without a launcher, at ``meeting`` (HOST:PORT); empty: elsewhere said."""
    spec = wanted.spec
    said = {variable(name): _text(getattr(spec, name)) for name in _AS_VARIABLES if name in spec.chosen_options}
    place = {variable("size"): str(spec.num_proc), variable("rendezvous"): meeting} if meeting else {}
    own = {**place, **said, "PYTHONUNBUFFERED": "1"}
    # Pods of one node share no memory: each is a node of its own.
    node = {"name": variable("node_id"), "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    return [node, *variables({**own, **key_variable(), **spec.rank_env})]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def variables(values: Mapping[str, str]) -> list[Object]:
    """Variables of a container. Kubernetes would replace ``$(NAME)`` in their values."""
    return [{"name": name, "value": value.replace("$(", "$$(")} for name, value in values.items()]


def words(command: Sequence[str]) -> list[str]:
    """A command, in which Kubernetes is to replace nothing."""
    return [word.replace("$(", "$$(") for word in command]


def key_variable() -> dict[str, str]:
    """Returns the variable that tells a process where the job key is: in a file, which keeps it out of environments."""
    return {variable("key_file"): f"{KEY_DIRECTORY}/key"}


def key_volume(wanted: Wanted) -> Object:
    """The Secret with the job key. Where the processes are not root's, their group may read it, whatever is said
    here."""
    secret = wanted.options.key_secret or f"{wanted.name}-key"
    return {"name": "key", "secret": {"secretName": secret, "defaultMode": 0o400}}


def pod_template(
    wanted: Wanted,
    component: str,
    command: Sequence[str],
    env: Sequence[Object],
    *,
    resources: Object | None = None,
    container: str = CONTAINER,
    keyed: bool = True,
    spec: Mapping[str, Any] | None = None,
    ports: Sequence[Object] = (),
) -> Object:
    """A pod with one container.

    Args:
        wanted: the job.
        component: its part in it.
        command: what runs in the image.
        env: its variables.
        resources: what it needs; None: what a pod with ranks needs.
        container: what the container is called.
        keyed: whether it has the job key.
        spec: further fields of the pod.
        ports: where it listens.
    """
    options = wanted.options
    given = dict(spec or {})
    user = given.pop("securityContext", None) or pod_security(wanted)
    volumes, mounts = _volumes(wanted, keyed=keyed, shared_memory=resources is None)
    one: Object = {
        "name": container,
        "image": options.image,
        **({"imagePullPolicy": options.image_pull_policy} if options.image_pull_policy else {}),
        "command": words(command),
        "env": list(env),
        **({"envFrom": _env_from(options)} if options.env_from else {}),
        **({"ports": list(ports)} if ports else {}),
        "resources": pod_resources(options) if resources is None else resources,
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    one = {name: value for name, value in one.items() if value not in ([], {})}
    body: Object = {
        "restartPolicy": "Never",
        **given,
        "terminationGracePeriodSeconds": math.ceil(wanted.spec.grace + TIMING.notice),
        **_scheduling(options, gpus=resources is None),
        "securityContext": user,
        "containers": [one],
        "volumes": volumes,
    }
    body = {name: value for name, value in body.items() if value is not None and value != []}
    notes = {"annotations": options.annotations} if options.annotations else {}
    return {"metadata": {"labels": labels_of(wanted, component), **notes}, "spec": body}


def container_of(template: Object) -> Object:
    """The container of a pod template."""
    found: Object = template["spec"]["containers"][0]
    return found


def pod_security(wanted: Wanted) -> Object:
    """Returns the user of the processes: with ``fsGroup``, they may read the job key. Root needs none."""
    user, group = wanted.options.run_as.user, wanted.options.run_as.group
    profile = {"seccompProfile": {"type": "RuntimeDefault"}}
    if user == 0:
        return {"runAsUser": 0, **profile}
    return {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": group, "fsGroup": group, **profile}


def pod_resources(options: KubernetesOptions) -> Object:
    """Returns the resources that a pod with ranks asks for. Its memory is reserved in full; it may use idle processors
    of its node.
    """
    requests = {name: one for name, one in (("cpu", options.cpus), ("memory", options.memory)) if one is not None}
    limits: Object = {} if options.memory is None else {"memory": options.memory}
    if options.gpus:
        limits[options.gpu_resource] = options.gpus
    return {name: one for name, one in (("requests", requests), ("limits", limits)) if one}


def _scheduling(options: KubernetesOptions, *, gpus: bool) -> Object:
    tolerations = [_toleration_of(one) for one in options.tolerations]
    pulls = [{"name": one} for one in options.image_pull_secrets]
    account = {"serviceAccountName": options.service_account} if options.service_account else {}
    return {
        **(account or {"automountServiceAccountToken": False}),
        **({"priorityClassName": options.priority_class} if options.priority_class else {}),
        **({"nodeSelector": options.node_selector} if options.node_selector and gpus else {}),
        **({"tolerations": tolerations} if tolerations and gpus else {}),
        **({"imagePullSecrets": pulls} if pulls else {}),
    }


def _toleration_of(one: Toleration) -> Object:
    how = {"operator": "Exists"} if one.value is None else {"operator": "Equal", "value": one.value}
    return {"key": one.key, **how, **({"effect": one.effect} if one.effect else {})}


def _env_from(options: KubernetesOptions) -> list[Object]:
    references = {"secret": "secretRef", "configmap": "configMapRef"}
    return [{references[one.kind]: {"name": one.name}} for one in options.env_from]


def _volumes(wanted: Wanted, *, keyed: bool, shared_memory: bool) -> tuple[list[Object], list[Object]]:
    """The volumes of a pod and where they are mounted: the job key, shared memory for the ranks, the user's own."""
    volumes, mounts = [], []
    if keyed:
        volumes.append(key_volume(wanted))
        mounts.append({"name": "key", "mountPath": KEY_DIRECTORY, "readOnly": True})
    if shared_memory:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": wanted.options.shm}})
        mounts.append({"name": "shm", "mountPath": SHARED_MEMORY})
    for number, volume in enumerate(wanted.options.volumes):
        name = f"volume-{number}"
        volumes.append({"name": name, **_source_of(volume)})
        read_only = {"readOnly": True} if volume.read_only else {}
        mounts.append({"name": name, "mountPath": volume.path, **read_only})
    return volumes, mounts


def _source_of(volume: Volume) -> Object:
    if volume.kind == "pvc":
        read_only = {"readOnly": True} if volume.read_only else {}
        return {"persistentVolumeClaim": {"claimName": volume.source, **read_only}}
    if volume.kind == "configmap":
        return {"configMap": {"name": volume.source}}
    if volume.kind == "secret":
        return {"secret": {"secretName": volume.source}}
    return {"emptyDir": {}}


def launcher_command(wanted: Wanted, *, restarts: bool) -> tuple[str, ...]:
    """The launcher that waits for the agents of the other pods. ``restarts``: whether it starts its ranks again, and
    not what has started it."""
    spec = replace(wanted.spec, platform={"agents": wanted.pods, "port": PORT})
    spec = spec if restarts else replace(spec, max_restarts=0)
    return ("tfcollective", "job", "--launcher", "agents", job_text(spec))


def agent_command(wanted: Wanted, launcher: str) -> tuple[str, ...]:
    """The agent of a pod; ``launcher`` is the host name of the launcher's."""
    join = ("--join", f"{launcher}:{PORT}", "--slots", str(wanted.options.procs_per_pod))
    return ("tfcollective", "agent", *join, "--start-timeout", f"{wanted.spec.start_timeout:g}")


def supervised_variables() -> list[Object]:
    """Variables of a launcher or an agent: what the ranks are given, they get from it."""
    return variables({"PYTHONUNBUFFERED": "1", **key_variable()})


def launcher_template(wanted: Wanted, *, restarts: bool, **spec: Any) -> Object:
    """The pod of the launcher; see :func:`launcher_command`."""
    return pod_template(
        wanted,
        LAUNCHER,
        launcher_command(wanted, restarts=restarts),
        supervised_variables(),
        resources=LAUNCHER_RESOURCES,
        spec=spec,
        ports=[{"name": "rendezvous", "containerPort": PORT}],
    )


def agent_template(wanted: Wanted, launcher: str, **spec: Any) -> Object:
    """The pods of the agents."""
    return pod_template(wanted, AGENTS, agent_command(wanted, launcher), supervised_variables(), spec={**spec})
