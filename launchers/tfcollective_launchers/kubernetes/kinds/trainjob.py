"""``--kind trainjob``: a TrainJob of Kubeflow's Trainer (v2) and the runtime that it names, in the same namespace.

The runtime has the plain policy, which sets no variables: all that the pods need is here.
"""

from __future__ import annotations

from tfcollective.launcher import UnsupportedError
from tfcollective_launchers.kubernetes.kinds.common import (
    PORT,
    Object,
    Wanted,
    container_of,
    failure_policy,
    labels_of,
    metadata_of,
    pod_template,
    rank_variables,
    suspended,
)
from tfcollective_launchers.kubernetes.kinds.jobset import NODE
from tfcollective_launchers.kubernetes.names import check_host_names

_API = "trainer.kubeflow.org"
_VERSION = f"{_API}/v1alpha1"


def trainjob_objects(wanted: Wanted) -> list[Object]:
    """See :data:`tfcollective_launchers.kubernetes.kinds.BUILDERS`."""
    wanted.check_without_launcher()
    if wanted.options.active_deadline is not None:
        raise UnsupportedError("--active-deadline: a TrainJob has none: use --kind job or --kind jobset")
    check_host_names(wanted.name, f"-{NODE}-0-{wanted.spec.num_proc - 1}")
    return [_runtime(wanted), _train_job(wanted)]


def _runtime(wanted: Wanted) -> Object:
    template = pod_template(
        wanted, "rank", wanted.spec.command, [], ports=[{"name": "rendezvous", "containerPort": PORT}], container=NODE
    )
    # The TrainJob says these, for its own number of nodes.
    for name in ("command", "env", "resources"):
        container_of(template).pop(name, None)
    policy = failure_policy("FailJob")
    policy["rules"][1]["onExitCodes"]["containerName"] = NODE
    job = {"backoffLimit": 0, "podFailurePolicy": policy, "podReplacementPolicy": "Failed", "template": template}
    labels = {**labels_of(wanted, NODE), f"{_API}/trainjob-ancestor-step": "trainer"}
    return {
        "apiVersion": _VERSION,
        "kind": "TrainingRuntime",
        "metadata": _labelled(metadata_of(wanted, wanted.name), {f"{_API}/framework": "tfcollective"}),
        "spec": {
            "mlPolicy": {"numNodes": wanted.spec.num_proc},
            "template": {
                "spec": {
                    "network": {"publishNotReadyAddresses": True},
                    "successPolicy": {"operator": "All", "targetReplicatedJobs": [NODE]},
                    "failurePolicy": {"maxRestarts": wanted.restarts},
                    "replicatedJobs": [{"name": NODE, "template": {"metadata": {"labels": labels}, "spec": job}}],
                }
            },
        },
    }


def _train_job(wanted: Wanted) -> Object:
    whole = pod_template(wanted, "rank", wanted.spec.command, rank_variables(wanted, _meeting(wanted)))
    container = container_of(whole)
    resources = {"resourcesPerNode": container["resources"]} if "resources" in container else {}
    return {
        "apiVersion": _VERSION,
        "kind": "TrainJob",
        "metadata": metadata_of(wanted, wanted.name, queued=True),
        "spec": {
            **suspended(wanted),
            "runtimeRef": {"apiGroup": _API, "kind": "TrainingRuntime", "name": wanted.name},
            "trainer": {
                "numNodes": wanted.spec.num_proc,
                "image": container["image"],
                "command": container["command"],
                "env": container["env"],
                **resources,
            },
        },
    }


def _meeting(wanted: Wanted) -> str:
    return f"{wanted.name}-{NODE}-0-0.{wanted.name}:{PORT}"


def _labelled(metadata: Object, labels: dict[str, str]) -> Object:
    return {**metadata, "labels": {**metadata["labels"], **labels}}
