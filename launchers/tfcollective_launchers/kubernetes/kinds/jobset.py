"""``--kind jobset``: the same as one JobSet, which ends and starts again as a whole."""

from __future__ import annotations

from typing import Any

from tfcollective_launchers.kubernetes.kinds.common import (
    AGENTS,
    LAUNCHER,
    PORT,
    Object,
    Wanted,
    agent_template,
    failure_policy,
    labels_of,
    launcher_template,
    limits_of,
    metadata_of,
    pod_template,
    rank_variables,
    suspended,
)
from tfcollective_launchers.kubernetes.kinds.job import agents_of, indexed
from tfcollective_launchers.kubernetes.names import check_host_names

NODE = "node"


def jobset_objects(wanted: Wanted) -> list[Object]:
    """See :data:`tfcollective_launchers.kubernetes.kinds.BUILDERS`."""
    if wanted.needs_launcher:
        parts, ends_with = [_launcher(wanted), _agents(wanted)], LAUNCHER
    else:
        parts, ends_with = [_ranks(wanted)], NODE
    limits = limits_of(wanted)
    deadline = limits.pop("activeDeadlineSeconds", None)
    if deadline is not None:
        for part in parts:
            part["template"]["spec"]["activeDeadlineSeconds"] = deadline  # a JobSet has none of its own
    spec = {
        **suspended(wanted),
        "network": {"enableDNSHostnames": True, "subdomain": wanted.name, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [ends_with]},
        "failurePolicy": {
            "maxRestarts": wanted.restarts,
            "rules": [{"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
        },
        **limits,
        "replicatedJobs": parts,
    }
    return [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata_of(wanted, wanted.name, queued=True),
            "spec": spec,
        }
    ]


def _ranks(wanted: Wanted) -> Object:
    size, name = wanted.spec.num_proc, wanted.name
    check_host_names(name, f"-{NODE}-0-{size - 1}")
    template = pod_template(
        wanted,
        "rank",
        wanted.spec.command,
        rank_variables(wanted, f"{name}-{NODE}-0-0.{name}:{PORT}"),
        ports=[{"name": "rendezvous", "containerPort": PORT}],
    )
    # The first failure ends all: the JobSet starts all of them again.
    return _part(wanted, NODE, {**indexed(size), "backoffLimit": 0, **_policy("FailJob")}, template)


def _launcher(wanted: Wanted) -> Object:
    template = launcher_template(wanted, restarts=False)
    return _part(wanted, LAUNCHER, {**indexed(1), "backoffLimit": 0, **_policy("FailJob")}, template)


def _agents(wanted: Wanted) -> Object:
    check_host_names(wanted.name, f"-{AGENTS}-0-{wanted.most_pods - 1}")
    launcher = f"{wanted.name}-{LAUNCHER}-0-0.{wanted.name}"
    return _part(wanted, AGENTS, agents_of(wanted), agent_template(wanted, launcher))


def _policy(action: str) -> Object:
    return {"podFailurePolicy": failure_policy(action)}


def _part(wanted: Wanted, name: str, spec: Object, template: Object) -> dict[str, Any]:
    metadata = {"labels": labels_of(wanted, name)}
    return {"name": name, "replicas": 1, "template": {"metadata": metadata, "spec": {**spec, "template": template}}}
