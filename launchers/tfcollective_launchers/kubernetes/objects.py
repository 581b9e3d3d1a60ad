"""The objects of a job that ``--launcher kubernetes`` runs: a Job with the launcher, which owns all others. Pure."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfcollective.launcher import TIMING, ConfigError, Host, JobSpec, Plan, Share, plan_hosts
from tfcollective_launchers.kubernetes.kinds.common import (
    AGENTS,
    LAUNCHER,
    LAUNCHER_RESOURCES,
    PORT,
    Object,
    Wanted,
    job_of,
    metadata_of,
    pod_template,
    service_of,
    variables,
)
from tfcollective_launchers.kubernetes.kinds.job import agents_of
from tfcollective_launchers.kubernetes.names import CALL_FILE, JOB_FILE, KEY_FILE, POD_IP, POD_UID, check_host_names
from tfcollective_launchers.kubernetes.options import KubernetesOptions

_MODULE = "tfcollective_launchers.kubernetes.pods"
_LARGEST_SECRET = (1 << 20) - (1 << 14)  # what etcd takes, less the names
_KEPT_S = 600.0  # a job whose submitter is gone


def described(spec: JobSpec, options: KubernetesOptions) -> Wanted:
    """The job with what its objects need; resources that only the roles say hold for all pods. ConfigError."""
    roles = [spec.task_specs[role] for role in ("chief", "worker") if role in spec.task_specs]
    if roles:
        options = replace(
            options,
            cpus=options.cpus or str(max(role.vcores for role in roles)),
            memory=options.memory or f"{max(role.memory_mib for role in roles)}Mi",
            gpus=options.gpus or max(role.gpus for role in roles),
            procs_per_pod=max(options.procs_per_pod, *(role.nb_proc_per_worker for role in roles)),
        )
    wanted = Wanted(spec, options)
    wanted.check_gpus()
    check_host_names(options.name, f"-{AGENTS}-{wanted.most_pods - 1}")
    return wanted


def plan_pods(wanted: Wanted, environ: Mapping[str, str]) -> Plan:
    """The ranks in the pods that the job begins with."""
    share, left = wanted.options.procs_per_pod, wanted.spec.num_proc
    shares = []
    for number in range(wanted.pods):
        first = number * share
        shares.append(Share(Host(pod_name(wanted, number), share), first, min(share, left - first)))
    return plan_hosts(wanted.spec, shares, environ)


def pod_name(wanted: Wanted, number: int) -> str:
    """The host name of an agent's pod."""
    return f"{wanted.name}-{AGENTS}-{number}"


def launcher_job(wanted: Wanted) -> Object:
    """The Job that runs the launcher. It has a deadline until the submitter has reached the launcher, so that nothing
    stays of one that was killed before the other objects were there."""
    options = wanted.options
    begins = math.ceil(options.allocation_timeout + TIMING.master)
    deadline = begins if options.active_deadline is None else min(begins, math.ceil(options.active_deadline))
    kept = options.ttl
    if kept is None and not options.detach:
        kept = _KEPT_S
    command = ("python", "-m", _MODULE, "launcher")
    template = pod_template(
        wanted,
        LAUNCHER,
        command,
        _variables(),
        resources=LAUNCHER_RESOURCES,
        spec={"hostname": LAUNCHER, "subdomain": wanted.name},
        ports=[{"name": "rendezvous", "containerPort": PORT}],
    )
    spec = {
        "backoffLimit": 0,  # a second one would find neither the coordinator's state nor the ranks
        "activeDeadlineSeconds": deadline,
        "ttlSecondsAfterFinished": math.ceil(86400 if kept is None else kept),
        "template": template,
    }
    return job_of(wanted, f"{wanted.name}-{LAUNCHER}", spec, queued=False, component=LAUNCHER)


def begun(wanted: Wanted) -> list[Object]:
    """Returns the change of the launcher's Job once the submitter has reached it, as an idempotent JSON patch."""
    deadline, place = wanted.options.active_deadline, "/spec/activeDeadlineSeconds"
    there = {"op": "add", "path": place, "value": 1 if deadline is None else math.ceil(deadline)}
    return [there, {"op": "remove", "path": place}] if deadline is None else [there]


def owned_objects(wanted: Wanted, files: Mapping[str, bytes], owner: Object) -> list[Object]:
    """The Secret with the job's files, the Service, and the Job of agents; ``owner`` is the launcher's Job as the
    cluster has it: they go with it. Raises ConfigError when a Secret cannot hold the files."""
    reference = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    objects = [_secret(wanted, files), service_of(wanted), _agents_job(wanted)]
    for one in objects:
        one["metadata"]["ownerReferences"] = [reference]
    return objects


def check_files(files: Mapping[str, bytes]) -> None:
    """Raises ConfigError when a Secret cannot hold them."""
    size = sum(map(len, files.values()))
    if size > _LARGEST_SECRET:
        raise ConfigError(
            f"the job's description has {size >> 10} KiB, {len(files.get(CALL_FILE, b'')) >> 10} KiB of which are the "
            f"pickled function with its arguments, and a Secret of Kubernetes holds {_LARGEST_SECRET >> 10} KiB: let "
            "the function load its data by itself"
        )


def _secret(wanted: Wanted, files: Mapping[str, bytes]) -> Object:
    check_files(files)
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata_of(wanted, wanted.options.key_secret or ""),
        "type": "Opaque",
        "data": data,
    }


def _agents_job(wanted: Wanted) -> Object:
    timeout = wanted.options.allocation_timeout + TIMING.container_margin
    share = str(wanted.options.procs_per_pod)
    command = ("python", "-m", _MODULE, "agent", f"{LAUNCHER}.{wanted.name}:{PORT}", share, f"{timeout:g}")
    template = pod_template(wanted, AGENTS, command, _variables(), spec={"subdomain": wanted.name})
    for volume in template["spec"]["volumes"]:
        if volume["name"] == "key":  # of the job's files, agents get the key alone
            volume["secret"]["items"] = [{"key": KEY_FILE, "path": KEY_FILE}]
    spec = {**agents_of(wanted), "template": template}
    return job_of(wanted, f"{wanted.name}-{AGENTS}", spec, component=AGENTS)


def _variables() -> list[dict[str, Any]]:
    fields = {POD_IP: "status.podIP", POD_UID: "metadata.uid"}
    said = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    return [*said, *variables({"PYTHONUNBUFFERED": "1"})]


def files_of(job: bytes, key: bytes, call: bytes | None) -> dict[str, bytes]:
    """The files of the job's Secret."""
    files = {JOB_FILE: job, KEY_FILE: key.hex().encode()}
    return files if call is None else {**files, CALL_FILE: call}
