"""Amazon SageMaker: a list of hosts and the name of this one; TF_CONFIG is there only with parameter servers."""

from __future__ import annotations

import json

from tfcollective.errors import ConfigError
from tfcollective.identity.addresses import DEFAULT_PORT
from tfcollective.identity.by_rank import claim_by_rank
from tfcollective.identity.model import Claim, Facts, Source

__all__ = ["SOURCE"]

_HOSTS = "SM_HOSTS"
_CURRENT = "SM_CURRENT_HOST"


def _is_present(facts: Facts) -> bool:
    return bool(facts.environ.get(_HOSTS)) and bool(facts.environ.get(_CURRENT))


def _parse(facts: Facts) -> Claim:
    try:
        hosts = json.loads(facts.environ[_HOSTS])
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{_HOSTS} is no JSON: {error}") from error
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise ConfigError(f"{_HOSTS}: a JSON list of host names is needed")
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


SOURCE = Source("sagemaker", f"{_HOSTS} and {_CURRENT}", _is_present, _parse)
