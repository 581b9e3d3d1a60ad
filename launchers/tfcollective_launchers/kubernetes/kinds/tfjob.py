"""``--kind tfjob``: a TFJob of Kubeflow's training operator (v1), whose pods read the TF_CONFIG that it sets."""

from __future__ import annotations

from tfcollective.launcher import CHIEF, EVALUATOR, TENSORBOARD, WORKER, UnsupportedError
from tfcollective_launchers.kubernetes.kinds.common import (
    Object,
    Wanted,
    limits_of,
    metadata_of,
    pod_template,
    rank_variables,
    suspended,
)
from tfcollective_launchers.kubernetes.names import check_host_names

_CONTAINER = "tensorflow"  # the operator demands this name, and that of the port
_PORT: Object = {"name": "tfjob-port", "containerPort": 2222}
_TYPES = {CHIEF: "Chief", WORKER: "Worker", EVALUATOR: "Evaluator"}


def tfjob_objects(wanted: Wanted) -> list[Object]:
    """See :data:`tfcollective_launchers.kubernetes.kinds.BUILDERS`."""
    wanted.check_without_launcher(("--task-spec",))
    roles = _roles(wanted)
    for role, count in roles.items():
        check_host_names(wanted.name, f"-{role}-{count - 1}")
    spec = {
        "successPolicy": "AllWorkers",  # the chief may end before the others
        "runPolicy": {
            **suspended(wanted),
            "cleanPodPolicy": "Running",
            "backoffLimit": wanted.restarts * sum(roles.values()),
            **limits_of(wanted),
        },
        "tfReplicaSpecs": {_TYPES[role]: _replicas(wanted, role, count) for role, count in roles.items()},
    }
    return [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": metadata_of(wanted, wanted.name, queued=True),
            "spec": spec,
        }
    ]


def _roles(wanted: Wanted) -> dict[str, int]:
    """Returns the number of pods of each role; without task specs, the first rank is the chief."""
    specs = wanted.spec.task_specs
    if not specs:
        others = wanted.spec.num_proc - 1
        return {CHIEF: 1, **({WORKER: others} if others else {})}
    if TENSORBOARD in specs:
        raise UnsupportedError("--kind tfjob: the training operator has no TensorBoard: use --kind job")
    for role, one in specs.items():
        if one.nb_proc_per_worker != 1 or one.min_instances is not None:
            raise UnsupportedError(
                f"--task-spec {role}: a TFJob has one rank in each pod, and as many all the time: use --kind job"
            )
    return {role: specs[role].instances for role in _TYPES if role in specs}


def _replicas(wanted: Wanted, role: str, count: int) -> Object:
    template = pod_template(
        wanted,
        role,
        wanted.spec.command,
        rank_variables(wanted, ""),
        container=_CONTAINER,
        spec={"restartPolicy": None},  # that of the replicas holds
        ports=[_PORT],
    )
    return {
        "replicas": count,
        # The pods keep their names and places, and meet again.
        "restartPolicy": "OnFailure" if wanted.restarts else "Never",
        "template": template,
    }
