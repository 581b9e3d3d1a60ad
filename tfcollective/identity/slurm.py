"""Processes that SLURM's ``srun`` has started. Variables of the whole job alone (in a batch script) do not count."""

from __future__ import annotations

from tfcollective.errors import ConfigError
from tfcollective.host_names import expand_hosts
from tfcollective.identity.by_rank import claim_by_rank, whole_number
from tfcollective.identity.model import Claim, Facts, Source

__all__ = ["SOURCE", "STEP_SIZE"]

_RANK = "SLURM_PROCID"
STEP_SIZE = "SLURM_STEP_NUM_TASKS"
_STEP_HOSTS = "SLURM_STEP_NODELIST"
_JOB, _STEP, _RESTARTS = "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"
_LOOPBACK = "127.0.0.1"


def _is_present(facts: Facts) -> bool:
    return _RANK in facts.environ and STEP_SIZE in facts.environ


def _parse(facts: Facts) -> Claim:
    rank, size = whole_number(facts.environ, _RANK), whole_number(facts.environ, STEP_SIZE, 1)
    hosts = _hosts(facts.environ.get(_STEP_HOSTS, ""))
    if len(hosts) == 1:
        hosts = [_LOOPBACK]  # all ranks are on one node, whatever it is called
    name = f"slurm-{facts.environ.get(_JOB, '')}-{facts.environ.get(_STEP, '')}"
    again = facts.environ.get(_RESTARTS, "0")
    if again != "0":  # a job that was queued again keeps its number: what is left of its last start is not of its world
        name = f"{name}-{again}"
    return claim_by_rank(facts, rank, size, name, host=hosts[0] if hosts else None, hosts=hosts)


def _hosts(text: str) -> list[str]:
    try:
        return expand_hosts(text) if text else []
    except ConfigError as error:
        raise ConfigError(f"{_STEP_HOSTS}: {error}") from error


SOURCE = Source("slurm", f"{_RANK} and {STEP_SIZE} (srun sets them)", _is_present, _parse)
