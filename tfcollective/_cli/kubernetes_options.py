"""The options of ``tfcollective run`` and ``tfcollective manifest`` that Kubernetes takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tfcollective._cli.cluster_options import ALLOCATION_TIMEOUT, DETACH, JOB_NAME, QUEUE
from tfcollective._cli.groups import GroupedOption, option

_SECONDS: dict[str, Any] = {"type": float, "metavar": "S"}

#: What describes a job, in a manifest and on the command line.
JOB_OPTIONS: tuple[GroupedOption, ...] = (
    QUEUE,
    JOB_NAME,
    option("--image", metavar="IMAGE", help="Image of all pods, with tfcollective in it. Required."),
    option("--image-pull-policy", metavar="NAME", help="Always, IfNotPresent or Never. [the cluster's default]"),
    option("--image-pull-secret", multiple=True, metavar="NAME", help="Secret for the registry; may be repeated."),
    option("--namespace", metavar="NAME", help="Namespace of the job. [the context's]"),
    option("--procs-per-pod", type=click.IntRange(min=1), metavar="N", help="Ranks in each pod. [1]"),
    option("--cpus", metavar="N", help="Processors of each pod: 4, 500m."),
    option("--memory", metavar="SIZE", help="Memory of each pod, and its limit: 8Gi."),
    option("--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs of each pod. [0]"),
    option("--gpu-resource", metavar="NAME", help="Resource that they are. [nvidia.com/gpu]"),
    option("--shm", metavar="SIZE", help="Size of /dev/shm, part of the pod's memory. [1Gi]"),
    option(
        "--volume",
        multiple=True,
        metavar="KIND/NAME:PATH",
        help="pvc/NAME:/PATH[:ro], configmap/NAME:/PATH, secret/NAME:/PATH or emptydir:/PATH; may be repeated.",
    ),
    option(
        "--env-from", multiple=True, metavar="KIND/NAME", help="Variables from secret/NAME or configmap/NAME; repeat."
    ),
    option("--node-selector", multiple=True, metavar="K=V", help="Label that nodes need; may be repeated."),
    option("--toleration", multiple=True, metavar="K[=V][:EFFECT]", help="Taint that nodes may have; may be repeated."),
    option("--service-account", metavar="NAME", help="Service account of the pods. [none is used]"),
    option("--priority-class", metavar="NAME", help="Priority class of the pods."),
    option("--run-as", metavar="UID[:GID]", help="User of all processes; 0 is root. [1000]"),
    option("--label", multiple=True, metavar="K=V", help="Label of all objects and pods; may be repeated."),
    option("--annotation", multiple=True, metavar="K=V", help="Annotation of all pods; may be repeated."),
    option("--active-deadline", **_SECONDS, help="Limit for the whole job. [none]"),
    option("--ttl", **_SECONDS, help="Time for which a job that has ended is kept. [a day]"),
)

#: What says how to reach the cluster and follow the job.
ACCESS_OPTIONS: tuple[GroupedOption, ...] = (
    option("--kubeconfig", metavar="F", help="File that describes the cluster. [KUBECONFIG, ~/.kube/config]"),
    option("--context", metavar="NAME", help="Context of that file. [the current one]"),
    option("--direct", is_flag=True, help="Connect to pods by their addresses. [through the API server]"),
    ALLOCATION_TIMEOUT,
    DETACH,
)
KUBERNETES_OPTIONS: tuple[GroupedOption, ...] = (*JOB_OPTIONS, *ACCESS_OPTIONS)

# By the option's name: that of the setting, where it differs.
_SETTINGS = {
    "job_name": "name",
    "image_pull_secret": "image_pull_secrets",
    "volume": "volumes",
    "toleration": "tolerations",
    "label": "labels",
    "annotation": "annotations",
}


def kubernetes_platform(options: Mapping[str, Any]) -> dict[str, Any]:
    """The platform's settings that the options mean."""
    names = [str(one.name) for one in KUBERNETES_OPTIONS]
    given = {_SETTINGS.get(name, name): options[name] for name in names if options.get(name) is not None}
    return {**given, "direct": given["direct"] or None} if "direct" in given else given
