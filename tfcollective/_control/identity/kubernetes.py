"""Pods of a Kubernetes Indexed Job, alone or made by Kubeflow's Trainer.

The index says which rank a pod is; how many there are and where rank 0 is stand in the manifest.
"""

from __future__ import annotations

from dataclasses import replace

from tfcollective._base.addresses import DEFAULT_PORT
from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import variable
from tfcollective._base.tasks import is_number
from tfcollective._base.topology import Endpoint
from tfcollective._control.identity.by_rank import claim_by_rank, whole_number
from tfcollective._control.identity.model import Claim, Facts, Source

_INDEX = "JOB_COMPLETION_INDEX"
_NODES, _PER_NODE = "PET_NNODES", "PET_NPROC_PER_NODE"
_LOCAL_RANK = "LOCAL_RANK"
_AS_MANY_AS_DEVICES = ("auto", "cpu", "gpu")
_ADDRESS, _PORT = "PET_MASTER_ADDR", "PET_MASTER_PORT"
_JAX_SIZE, _JAX_RANK, _JAX_ADDRESS = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"


def _is_present(facts: Facts) -> bool:
    """An index alone may be that of pods which have nothing to do with each other."""
    meant = (
        facts.settings.size is not None or facts.settings.rendezvous is not None or bool(facts.environ.get(_ADDRESS))
    )
    return (_INDEX in facts.environ and meant) or _is_of_jax(facts)


def _is_of_jax(facts: Facts) -> bool:
    return all(facts.environ.get(name) for name in (_JAX_SIZE, _JAX_RANK, _JAX_ADDRESS))


def _parse(facts: Facts) -> Claim:
    return _parse_jax(facts) if _is_of_jax(facts) else _parse_indexed(facts)


def _parse_jax(facts: Facts) -> Claim:
    """Reads the variables of the JAX policy of Kubeflow's Trainer. No JAX runs here: its rendezvous address is free."""
    text = facts.environ[_JAX_ADDRESS].strip()
    try:
        endpoint = Endpoint.parse(text if ":" in text else f"{text}:{DEFAULT_PORT}")
    except ConfigError as error:
        raise ConfigError(f"{_JAX_ADDRESS}: {error}") from error
    rank, size = whole_number(facts.environ, _JAX_RANK), whole_number(facts.environ, _JAX_SIZE, 1)
    host, port = endpoint.host, endpoint.port
    return claim_by_rank(facts, rank, size, "kubernetes", host=host, port=port, hosts=(host,))


def _parse_indexed(facts: Facts) -> Claim:
    nodes, note = _nodes(facts)
    per_node, guess = _processes_per_node(facts, nodes)
    rank = whole_number(facts.environ, _INDEX)
    if per_node > 1:
        rank = rank * per_node + _process_of_node(facts, per_node)
    size = facts.settings.size
    if size is None:
        if nodes is None:
            raise ConfigError(f"{_INDEX} is set, but nothing says how many pods train together: set {variable('size')}")
        size = nodes * per_node
    host = facts.environ.get(_ADDRESS) or None
    port = whole_number(facts.environ, _PORT, 1) if facts.environ.get(_PORT) else DEFAULT_PORT
    claim = claim_by_rank(facts, rank, size, "kubernetes", host=host, port=port, hosts=(host,) if host else ())
    return replace(claim, notes=tuple(filter(None, (note if facts.settings.size is None else "", guess))))


def _nodes(facts: Facts) -> tuple[int | None, str]:
    """Returns the largest number of pods, and a note for the user. ``MIN:MAX`` is torchrun's form of an elastic job."""
    text = facts.environ.get(_NODES, "").strip()
    if not text:
        return None, ""
    least, colon, most = text.partition(":")
    if not colon:
        return whole_number(facts.environ, _NODES, 1), ""
    if not (is_number(least) and is_number(most) and 0 < int(least) <= int(most)):
        raise ConfigError(f"{_NODES}: expected a number of pods, 1 or more, or MIN:MAX, got {text[:80]!r}")
    note = f"{_NODES}={text}: the job waits for all {int(most)} pods; with fewer, set {variable('size')}"
    return int(most), "" if int(least) == int(most) else note


def _processes_per_node(facts: Facts, nodes: int | None) -> tuple[int, str]:
    """Returns how many processes a pod runs, and a note for the user. Torchrun's words for "as many as there are
    devices" mean one here. So does a number if no local rank is given: the Trainer writes the number of CPUs if a pod
    asks for no GPU, whatever the pod runs. A size above the number of pods shows that the number is meant."""
    text = facts.environ.get(_PER_NODE, "").strip()
    count = 1 if text in ("", *_AS_MANY_AS_DEVICES) else whole_number(facts.environ, _PER_NODE, 1)
    if count == 1 or _LOCAL_RANK in facts.environ:
        return count, ""
    if facts.settings.size is not None and nodes is not None and facts.settings.size > nodes:
        raise ConfigError(
            f"{variable('size')}={facts.settings.size} is more than the {nodes} pods of {_NODES}, but {_LOCAL_RANK} "
            f"does not say which of the {count} processes of {_PER_NODE} in its pod this one is: set it to 0 to "
            f"{count - 1}, or {variable('size')} to {nodes} for one process in every pod"
        )
    return 1, f"{_PER_NODE}={count}, but no {_LOCAL_RANK}: this is the only process of its pod"


def _process_of_node(facts: Facts, per_node: int) -> int:
    local_rank = whole_number(facts.environ, _LOCAL_RANK)
    if local_rank >= per_node:
        raise ConfigError(f"{_LOCAL_RANK}={local_rank} is not below {_PER_NODE}={per_node}")
    return local_rank


SOURCE = Source(
    "kubernetes",
    f"{_INDEX}, and {variable('size')} or {_ADDRESS}; or {_JAX_RANK}, {_JAX_SIZE} and {_JAX_ADDRESS}",
    _is_present,
    _parse,
)
