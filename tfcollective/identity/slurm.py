"""Processes that SLURM's ``srun`` has started. Variables of the whole job alone (in a batch script) do not count."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tfcollective.errors import ConfigError
from tfcollective.identity.by_rank import claim_by_rank, whole_number
from tfcollective.identity.model import Claim, Facts, Source

__all__ = ["SOURCE", "STEP_SIZE", "expand_hosts"]

_RANK = "SLURM_PROCID"
STEP_SIZE = "SLURM_STEP_NUM_TASKS"
_STEP_HOSTS = "SLURM_STEP_NODELIST"
_JOB, _STEP = "SLURM_JOB_ID", "SLURM_STEP_ID"
_LOOPBACK = "127.0.0.1"
_MAX_HOSTS = 100_000
_WORDS = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def expand_hosts(text: str) -> list[str]:
    """The hosts of SLURM's compact form: ``n[01-03,7],gpu`` is n01, n02, n03, n7, gpu. ConfigError if it is none."""
    words = _WORDS.findall(text)
    if ",".join(words) != text or not words:
        raise ConfigError(f"{_STEP_HOSTS}={text!r} is no list of hosts")
    hosts: list[str] = []
    for word in words:
        for host in _expand(word, text):
            hosts.append(host)
            if len(hosts) > _MAX_HOSTS:
                raise ConfigError(f"{_STEP_HOSTS} names more than {_MAX_HOSTS} hosts")
    return hosts


def _expand(word: str, text: str) -> Iterator[str]:
    before, bracket, rest = word.partition("[")
    if not bracket:
        yield word
        return
    inside, _, after = rest.partition("]")
    for item in inside.split(","):
        found = _RANGE.fullmatch(item)
        if found is None:
            raise ConfigError(f"{_STEP_HOSTS}={text!r} is no list of hosts: {item!r}")
        first, last = found.group(1), found.group(2) or found.group(1)
        for number in range(int(first), int(last) + 1):
            for tail in _expand(after, text):
                yield f"{before}{number:0{len(first)}d}{tail}"


def _is_present(facts: Facts) -> bool:
    return _RANK in facts.environ and STEP_SIZE in facts.environ


def _parse(facts: Facts) -> Claim:
    rank, size = whole_number(facts.environ, _RANK), whole_number(facts.environ, STEP_SIZE, 1)
    hosts = expand_hosts(facts.environ[_STEP_HOSTS]) if facts.environ.get(_STEP_HOSTS) else []
    if len(hosts) == 1:
        hosts = [_LOOPBACK]  # all ranks are on one node, whatever it is called
    name = f"slurm-{facts.environ.get(_JOB, '')}-{facts.environ.get(_STEP, '')}"
    return claim_by_rank(facts, rank, size, name, host=hosts[0] if hosts else None, hosts=hosts)


SOURCE = Source("slurm", f"{_RANK} and {STEP_SIZE} (srun sets them)", _is_present, _parse)
