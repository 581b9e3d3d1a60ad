"""Asks the sources in their order of precedence.

    launcher     our own launchers' variables
    tf_config    TF_CONFIG with a cluster
    vertex       CLUSTER_SPEC with pools of workers
    sagemaker    SM_HOSTS and SM_CURRENT_HOST
    mpi          OMPI_COMM_WORLD_RANK, MV2_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK
    slurm        SLURM_PROCID in a step
    kubernetes   JOB_COMPLETION_INDEX with a size or a place to meet
    single       nothing of these: a process alone; an error where the environment says that there are others

The first that is present decides; ``TFCOLLECTIVE_IDENTITY`` names another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping

from tfcollective._base.addresses import is_own_host
from tfcollective._base.errors import ConfigError
from tfcollective._base.log import get_logger
from tfcollective._base.settings import Settings, variable
from tfcollective._base.tasks import PS, PS_ADVICE, WORKER, TaskKey
from tfcollective._control.identity import cluster, kubernetes, mpi
from tfcollective._control.identity.alone import check_alone
from tfcollective._control.identity.by_rank import SAGEMAKER, SLURM
from tfcollective._control.identity.keys import read_key
from tfcollective._control.identity.model import Claim, Facts, Identity, Source
from tfcollective._control.identity.node import ancestor, current_node_id

_LOG = get_logger(__name__)
SOURCES: tuple[Source, ...] = (*cluster.SOURCES, SAGEMAKER, mpi.SOURCE, SLURM, kubernetes.SOURCE)


def discover(
    settings: Settings,
    environ: Mapping[str, str],
    is_own_host: Callable[[str], bool] = is_own_host,
    ancestor: Callable[[Collection[str]], str | None] = ancestor,
) -> Identity:
    """Finds out the identity of this process.

    ``environ`` is a snapshot of the environment, for the sources that other systems write; our own launcher's
    values stand in ``settings``. Reads the key file. Raises ConfigError that names what is wrong.
    """
    facts = Facts(settings, environ, is_own_host, ancestor)
    node = current_node_id(settings.node_id)
    forced = settings.identity
    if forced == "launcher" or (forced == "auto" and settings.coordinator is not None):
        return _launched(settings, read_key(settings), node)
    source = _find(facts, forced)
    if source is None:
        return _alone(node, () if forced == "single" else check_alone(facts))
    claim = source.parse(facts)
    _check_ps(claim, source, settings)
    identity = _identity(claim, source, settings, node)
    _LOG.info("identity: %s says %s of %d", source.name, identity.task, identity.world_size)
    for note in identity.notes:
        _LOG.info("identity: %s", note)
    return identity


def _alone(node: str, warnings: tuple[str, ...]) -> Identity:
    for warning in warnings:
        _LOG.warning("%s", warning)
    name = f"single-{os.getpid()}"
    return Identity(TaskKey(WORKER, 0), 1, None, name, key=None, source="single", node_id=node, notes=warnings)


def _launched(settings: Settings, key: bytes | None, node: str) -> Identity:
    """The identity that our own launchers write into a worker's environment. ConfigError names what is missing."""
    if settings.coordinator is None or settings.task is None or settings.size is None or settings.job_id is None:
        needed = ("coordinator", "task", "size", "job_id")
        missing = ", ".join(variable(field) for field in needed if getattr(settings, field) is None)
        raise ConfigError(f"the launcher's environment is incomplete: {missing} not set")
    if key is None:
        raise ConfigError(f"no job key: none of {variable('key_file')}, {variable('key_fd')}, {variable('key')} is set")
    return Identity(settings.task, settings.size, settings.coordinator, settings.job_id, key, "launcher", node)


def _find(facts: Facts, forced: str) -> Source | None:
    if forced == "single":
        return None
    for source in SOURCES:
        if forced in ("auto", source.name):
            if source.is_present(facts):
                return source
            if forced != "auto":
                raise ConfigError(f"{variable('identity')}={forced}, but there is no {source.needs}")
    return None


def _check_ps(claim: Claim, source: Source, settings: Settings) -> None:
    if claim.task.type == PS and settings.ps_policy == "error":
        raise ConfigError(
            f"{source.name}: this process is {claim.task}, but {PS_ADVICE}. Where the job description cannot be "
            f"changed, {variable('ps_policy')}=exit0 lets ps processes end at once with exit code 0"
        )


def _identity(claim: Claim, source: Source, settings: Settings, node: str) -> Identity:
    return Identity(
        task=claim.task,
        world_size=len(claim.trainers),
        coordinator=claim.rendezvous,
        job_id=settings.job_id or f"{source.name}-{claim.name}",
        key=None if claim.rendezvous is None else read_key(settings),
        source=source.name,
        node_id=node,
        trainers=claim.trainers,
        hosts=claim.hosts,
        notes=claim.notes,
    )
