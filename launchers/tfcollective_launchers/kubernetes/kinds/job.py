"""``--kind job``: Jobs of Kubernetes' own and a headless Service; needs no operator.

A job of fixed size is one Indexed Job whose pods are a rank each and meet at the first of them. What needs a launcher
(an elastic job, several ranks in a pod, an evaluator) is a Job with one, and an Indexed Job of agents that join it.
"""

from __future__ import annotations

from tfcollective.launcher import UnsupportedError
from tfcollective_launchers.kubernetes.kinds.common import (
    AGENTS,
    FINAL_CODES,
    LAUNCHER,
    PORT,
    Object,
    Wanted,
    agent_template,
    failure_policy,
    job_of,
    launcher_template,
    limits_of,
    pod_template,
    rank_variables,
    service_of,
)
from tfcollective_launchers.kubernetes.names import check_host_names

_TRIES_OF_AN_AGENT = 10  # of a pod that fails again and again; those that the cluster takes away do not count


def job_objects(wanted: Wanted) -> list[Object]:
    """See :data:`tfcollective_launchers.kubernetes.kinds.BUILDERS`."""
    if not wanted.needs_launcher:
        return [service_of(wanted), _ranks(wanted)]
    if wanted.options.queue:
        raise UnsupportedError(
            f"--queue: with a launcher ({wanted.needs_launcher[0]} needs one) the job is two Jobs, which Kueue would "
            "let go one by one: use --kind jobset"
        )
    return [service_of(wanted), _launcher(wanted), _agents(wanted)]


def _ranks(wanted: Wanted) -> Object:
    name, size = wanted.name, wanted.spec.num_proc
    check_host_names(name, f"-{size - 1}")
    template = pod_template(
        wanted,
        "rank",
        wanted.spec.command,
        rank_variables(wanted, f"{name}-0.{name}:{PORT}"),
        spec={"subdomain": name},
        ports=[{"name": "rendezvous", "containerPort": PORT}],
    )
    spec = {
        **indexed(size),
        # A rank that fails takes the others with it, and each of them counts.
        "backoffLimit": wanted.restarts * size,
        "podFailurePolicy": failure_policy("FailJob"),
        **limits_of(wanted),
        "template": template,
    }
    return job_of(wanted, name, spec)


def _launcher(wanted: Wanted) -> Object:
    template = launcher_template(wanted, restarts=True, hostname=LAUNCHER, subdomain=wanted.name)
    spec = {
        "backoffLimit": 0,  # it has started the ranks again as often as is wanted
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": failure_policy("FailJob"),
        **limits_of(wanted),
        "template": template,
    }
    return job_of(wanted, f"{wanted.name}-{LAUNCHER}", spec, queued=False, component=LAUNCHER)


def _agents(wanted: Wanted) -> Object:
    check_host_names(wanted.name, f"-{AGENTS}-{wanted.most_pods - 1}")
    spec = {
        **agents_of(wanted),
        **limits_of(wanted),
        "template": agent_template(wanted, f"{LAUNCHER}.{wanted.name}", subdomain=wanted.name),
    }
    return job_of(wanted, f"{wanted.name}-{AGENTS}", spec, queued=False, component=AGENTS)


def indexed(pods: int) -> Object:
    """Returns a Job with as many pods, each with an index; a pod is replaced by one with the same index once it has
    ended.
    """
    return {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "podReplacementPolicy": "Failed",
    }


def agents_of(wanted: Wanted) -> Object:
    """A pod that fails is replaced alone. Those that an elastic job may have more than at first join when they come."""
    pods = wanted.most_pods
    return {
        **indexed(pods),
        "backoffLimitPerIndex": max(wanted.restarts, _TRIES_OF_AN_AGENT),
        "maxFailedIndexes": pods - 1 if wanted.spec.bounds is not None else 0,
        "podFailurePolicy": failure_policy("FailIndex", FINAL_CODES[:1]),
    }
