"""SLURM, SageMaker, and what these sources of a rank, a size and perhaps a place to meet have in common with others.
Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tfcollective._base.addresses import DEFAULT_PORT, job_port
from tfcollective._base.errors import ConfigError
from tfcollective._base.host_names import expand_hosts
from tfcollective._base.settings import variable
from tfcollective._base.tasks import WORKER, TaskKey, is_number, workers
from tfcollective._base.topology import Endpoint
from tfcollective._control.identity.model import Claim, Facts, Source

_RANK = "SLURM_PROCID"
STEP_SIZE = "SLURM_STEP_NUM_TASKS"
_STEP_HOSTS = "SLURM_STEP_NODELIST"
_JOB, _STEP, _RESTARTS = "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"
_LOOPBACK = "127.0.0.1"
_HOSTS = "SM_HOSTS"
_CURRENT = "SM_CURRENT_HOST"


def whole_number(environ: Mapping[str, str], name: str, least: int = 0) -> int:
    """The number in a variable; ConfigError that names the variable."""
    text = environ.get(name, "").strip()
    if not is_number(text) or int(text) < least:
        raise ConfigError(f"{name}: expected a whole number of {least} or more, got {text[:80]!r}")
    return int(text)


def claim_by_rank(
    facts: Facts,
    rank: int,
    size: int,
    name: str,
    *,
    host: str | None,
    port: int | None = None,
    hosts: Sequence[str] = (),
) -> Claim:
    """A world of workers whose indices are their ranks.

    ``host`` is rank 0's, where it is known; ``port`` a port there that all ranks know (None: made of ``name``). The
    setting ``rendezvous`` goes before both. Raises ConfigError.
    """
    given = facts.settings.size
    if given is not None and given != size:
        raise ConfigError(f"{variable('size')}={given}, but this process was started as one of {size}")
    if rank >= size:
        raise ConfigError(f"the rank {rank} is not below the size {size}")
    rendezvous = None
    if size > 1:
        rendezvous = facts.settings.rendezvous
        if rendezvous is None and host is None:
            raise ConfigError(
                f"nothing says where rank 0 is: set {variable('rendezvous')}=HOST:PORT on all ranks to a free port of "
                "its host"
            )
        if rendezvous is None and host is not None:
            rendezvous = Endpoint.parse(str(Endpoint(host, port or job_port(name))))  # others have written it
    return Claim(TaskKey(WORKER, rank), workers(size), rendezvous, name, tuple(hosts))


# ---- SLURM: processes that srun has started. Variables of the whole job alone (in a batch script) do not count. -----


def _is_slurm_present(facts: Facts) -> bool:
    return _RANK in facts.environ and STEP_SIZE in facts.environ


def _parse_slurm(facts: Facts) -> Claim:
    rank, size = whole_number(facts.environ, _RANK), whole_number(facts.environ, STEP_SIZE, 1)
    hosts = _slurm_hosts(facts.environ.get(_STEP_HOSTS, ""))
    if len(hosts) == 1:
        hosts = [_LOOPBACK]  # all ranks are on one node, whatever it is called
    name = f"slurm-{facts.environ.get(_JOB, '')}-{facts.environ.get(_STEP, '')}"
    again = facts.environ.get(_RESTARTS, "0")
    if again != "0":  # a job that was queued again keeps its number: what is left of its last start is not of its world
        name = f"{name}-{again}"
    return claim_by_rank(facts, rank, size, name, host=hosts[0] if hosts else None, hosts=hosts)


def _slurm_hosts(text: str) -> list[str]:
    try:
        return expand_hosts(text) if text else []
    except ConfigError as error:
        raise ConfigError(f"{_STEP_HOSTS}: {error}") from error


SLURM = Source("slurm", f"{_RANK} and {STEP_SIZE} (srun sets them)", _is_slurm_present, _parse_slurm)


# ---- Amazon SageMaker: a list of hosts and the name of this one; TF_CONFIG is there only with parameter servers. ----


def _is_sagemaker_present(facts: Facts) -> bool:
    return bool(facts.environ.get(_HOSTS)) and bool(facts.environ.get(_CURRENT))


def _parse_sagemaker(facts: Facts) -> Claim:
    try:
        hosts = json.loads(facts.environ[_HOSTS])
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{_HOSTS} is not JSON: {error}") from error
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise ConfigError(f"{_HOSTS}: expected a JSON list of host names")
    if len(set(hosts)) != len(hosts):
        raise ConfigError(f"{_HOSTS} names a host twice: {', '.join(hosts)}")
    current = facts.environ[_CURRENT]
    if current not in hosts:
        raise ConfigError(f"{_CURRENT}={current!r} is not in {_HOSTS}")
    ordered = sorted(hosts, key=_natural)  # the list's order is not promised to be the same everywhere
    rank = ordered.index(current)
    return claim_by_rank(facts, rank, len(ordered), "sagemaker", host=ordered[0], port=DEFAULT_PORT, hosts=ordered)


def _natural(host: str) -> tuple[str, int, str, str]:
    """``algo-2`` before ``algo-10``."""
    stem = host.rstrip("0123456789")
    number = host[len(stem) :]
    return stem, len(number.lstrip("0")), number.lstrip("0"), number


SAGEMAKER = Source("sagemaker", f"{_HOSTS} and {_CURRENT}", _is_sagemaker_present, _parse_sagemaker)
