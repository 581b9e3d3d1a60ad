"""The checks of ``tfcollective check --launcher kubernetes``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tfcollective.launcher import ConfigError, Finding, JobSpec
from tfcollective_launchers.kubernetes.cluster import Cluster, import_client
from tfcollective_launchers.kubernetes.objects import described, files_of, launcher_job, owned_objects
from tfcollective_launchers.kubernetes.options import KubernetesOptions

_NO_IMAGE = "-"
#: What the launcher does, by resource: its API group and the verbs.
RIGHTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "jobs": ("batch", ("create", "get", "patch", "delete")),
    "secrets": ("", ("create", "get")),
    "services": ("", ("create",)),
    "pods": ("", ("get", "list", "watch")),
    "pods/log": ("", ("get",)),
}
_FORWARDED = {"pods/portforward": ("", ("create", "get"))}  # unless pods are reached directly


def findings(platform: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields finding after finding, until the next check could not work. Raises ConfigError for wrong settings."""
    options = KubernetesOptions.of({**platform, "image": platform.get("image") or _NO_IMAGE})
    remedy = "pip install 'tfcollective[kubernetes]'"
    client = Finding.of("client", lambda: f"kubernetes {import_client().__version__}", remedy)
    yield client
    if not client.ok:
        return
    try:
        cluster = Cluster.connect(options)
    except ConfigError as error:
        yield Finding("cluster", False, str(error), "see whether `kubectl config view` names a cluster")
        return
    looks = (_cluster, partial(_rights, options=options), partial(_objects, options=options))
    yield from Finding.until_one_fails(partial(look, cluster) for look in looks)


def _cluster(cluster: Cluster) -> Finding:
    remedy = "see whether `kubectl version` answers: the address, your credentials, a proxy or a VPN"
    return Finding.of("cluster", cluster.describe, remedy)


def _rights(cluster: Cluster, options: KubernetesOptions) -> Finding:
    """Returns what the API server itself says of each right."""
    name = f"rights in the namespace {cluster.namespace}"
    direct = cluster.inside if options.direct is None else options.direct
    wanted = RIGHTS if direct else {**RIGHTS, **_FORWARDED}

    def look() -> str:
        missing = [
            f"{verb} {resource}"
            for resource, (group, verbs) in wanted.items()
            for verb in verbs
            if not cluster.may(verb, resource, group)
        ]
        if missing:
            raise ConfigError(f"not allowed: {', '.join(missing)}")
        return ", ".join(wanted)

    return Finding.of(name, look, "have a Role with these verbs bound to your account, or choose another --namespace")


def _objects(cluster: Cluster, options: KubernetesOptions) -> Finding:
    """The objects of a job with these options, which the API server checks and does not keep."""
    name = "objects of a job"
    if options.image == _NO_IMAGE:
        return Finding.note(name, "not tried: no image is named", "name it with --image, and what a pod needs")

    def look() -> str:
        job = f"{options.name}-check"
        named = replace(options, name=job, namespace=cluster.namespace, key_secret=f"{job}-job")
        wanted = described(JobSpec(("true",), 1), named)
        owner = cluster.create(launcher_job(wanted), dry_run=True)
        for one in owned_objects(wanted, files_of(b"", bytes(32), None), owner):
            cluster.create(one, dry_run=True)
        return f"accepted, and none was made (dry run); whether {options.image} can be pulled shows when pods start"

    return Finding.of(name, look, "change the options that it names; quotas and admission rules are the cluster's")
