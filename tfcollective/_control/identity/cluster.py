"""TF_CONFIG, Vertex AI's CLUSTER_SPEC, and the rules by which the cluster in them becomes a world. Pure.

Who writes what, and how TensorFlow itself reads it: ``docs/howto/tf_config.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import TF_CONFIG, variable
from tfcollective._base.tasks import (
    CHIEF,
    EVALUATOR,
    PS,
    SIDE_TYPES,
    TRAINER_TYPES,
    WORKER,
    TaskKey,
    is_number,
    trainers,
    workers,
)
from tfcollective._base.topology import Endpoint
from tfcollective._control.identity.model import Claim, Facts, Source

_OTHER_NAMES = {"master": CHIEF}
_LISTED_TYPES = (*TRAINER_TYPES, EVALUATOR, PS)
_KNOWN_TYPES = (*TRAINER_TYPES, *SIDE_TYPES, PS)
_SCHEMES = ("grpc://",)
_CLUSTER_SPEC = "CLUSTER_SPEC"
# The training operator of Kubeflow before 1.7 writes the cluster of dynamic workers under the second name.
_CLUSTER_NAMES = ("cluster", "sparseCluster")
# The pools' places are fixed: primary replica, workers, parameter or reduction servers, evaluators.
_POOLS = {"workerpool0": CHIEF, "workerpool1": WORKER, "workerpool2": PS, "workerpool3": EVALUATOR}


@dataclass(frozen=True)
class _Cluster:
    """A cluster, in our words.

    Attributes:
        where: the variable that it comes from, for messages.
        addresses: of the tasks that are listed.
        sparse: workers are listed by index and there may be more of them.
        notes: what was ignored.
    """

    where: str
    addresses: Mapping[TaskKey, Endpoint]
    sparse: bool
    notes: tuple[str, ...]


def _load(text: str, where: str) -> Mapping[str, object]:
    """The JSON object in a variable; ConfigError that names the variable and the place when there is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # the second: brackets in brackets without end
        raise ConfigError(f"{where} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: expected a JSON object, got {_brief(document)}")
    return document


def _cluster_of(document: Mapping[str, object]) -> object:
    """The cluster in a document, or None where there is nobody in it."""
    for name in _CLUSTER_NAMES:
        cluster = document.get(name)
        if cluster and (not isinstance(cluster, Mapping) or any(cluster.values())):
            return cluster
    return None


def _claim(document: Mapping[str, object], where: str, facts: Facts) -> Claim:
    """Reads this process's identity from a variable's document. Raises ConfigError."""
    cluster = _read_cluster(_cluster_of(document), where)
    task = _read_task(document.get("task"), where) or _find_self(cluster, facts)
    world = _world(cluster, task, facts.settings.size)
    _check_member(cluster, task, world)
    rendezvous = None
    if len(world) > 1:
        rendezvous = facts.settings.rendezvous or _address_of_first(cluster, world[0])
    hosts = tuple(cluster.addresses[one].host for one in world if one in cluster.addresses)
    name = f"{len(world)}-{rendezvous.port if rendezvous else 0}"
    return Claim(task, world, rendezvous, name, hosts, cluster.notes)


# ---- the cluster ----------------------------------------------------------------------------------------------------


def _read_cluster(document: object, where: str) -> _Cluster:
    if not isinstance(document, Mapping):
        raise ConfigError(f"{where}: cluster: expected a JSON object, got {_brief(document)}")
    addresses: dict[TaskKey, Endpoint] = {}
    notes: list[str] = []
    sparse = False
    seen: dict[str, str] = {}
    for written, members in document.items():
        kind = _canonical(written)
        if kind not in _LISTED_TYPES:
            notes.append(f"{where}: the job {written!r} of the cluster is ignored")
            continue
        if kind in seen:
            raise ConfigError(f"{where}: the cluster has both {seen[kind]!r} and {written!r}; they mean the same")
        seen[kind] = written
        indexed = dict(_indexed(members, kind, where))
        sparse = sparse or (kind == WORKER and _is_sparse(members, indexed))
        addresses.update({_task(kind, index, where): endpoint for index, endpoint in indexed.items()})
    _check_addresses(addresses, where)
    return _Cluster(where, addresses, sparse, tuple(notes))


def _canonical(kind: str) -> str:
    name = kind.strip().lower()
    return _OTHER_NAMES.get(name, name)


def _indexed(members: object, kind: str, where: str) -> Iterator[tuple[int, Endpoint]]:
    """The members of a job, written as a list or as an object from index to address."""
    if isinstance(members, Mapping):
        pairs = [(_index(key, f"{where}: {kind}"), value) for key, value in members.items()]
    elif isinstance(members, Sequence) and not isinstance(members, str):
        pairs = list(enumerate(members))
    elif members is None:
        pairs = []
    else:
        raise ConfigError(f"{where}: {kind}: expected a list of addresses, got {_brief(members)}")
    for index, value in pairs:
        yield index, _endpoint(value, f"{where}: {kind}:{index}")


def _endpoint(value: object, where: str) -> Endpoint:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: expected HOST:PORT, got {_brief(value)}")
    text = value.strip()
    for scheme in _SCHEMES:
        text = text.removeprefix(scheme)
    try:
        return Endpoint.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _is_sparse(members: object, indexed: Mapping[int, Endpoint]) -> bool:
    """True if there may be workers that are not listed. An operator that adds workers as it goes tells each of them
    only its own address, under its index: a list with one entry, or with gaps, may be incomplete."""
    return isinstance(members, Mapping) and (len(indexed) < 2 or sorted(indexed) != list(range(len(indexed))))


def _check_addresses(addresses: Mapping[TaskKey, Endpoint], where: str) -> None:
    evaluators = [task for task in addresses if task.type == EVALUATOR and task.index > 0]
    if evaluators:
        raise ConfigError(f"{where}: a job has one evaluator at most, evaluator:0; the cluster lists {evaluators[0]}")
    owners: dict[Endpoint, TaskKey] = {}
    for task, endpoint in addresses.items():
        other = owners.setdefault(endpoint, task)
        if other != task:
            raise ConfigError(f"{where}: {other} and {task} have the same address {endpoint}")


# ---- this process ---------------------------------------------------------------------------------------------------


def _read_task(document: object, where: str) -> TaskKey | None:
    """The task that is written down, or None when none is."""
    if document is None or document == {}:
        return None
    if not isinstance(document, Mapping):
        raise ConfigError(f"{where}: task: expected a JSON object, got {_brief(document)}")
    written = document.get("type")
    if not isinstance(written, str) or not written.strip():
        raise ConfigError(f"{where}: the task has no type: expected one of {', '.join(_KNOWN_TYPES)}")
    kind = _canonical(written)
    if kind not in _KNOWN_TYPES:
        raise ConfigError(f"{where}: task type: expected one of {', '.join(_KNOWN_TYPES)}, got {written!r}")
    index = document.get("index")
    if index is None and kind in (CHIEF, *SIDE_TYPES):
        index = 0  # there is one of these
    return _task(kind, _index(index, f"{where}: {kind}"), where)


def _task(kind: str, index: int, where: str) -> TaskKey:
    try:
        return TaskKey(kind, index)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _index(value: object, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and is_number(value.strip()):
        return int(value)
    raise ConfigError(f"{where}: index: expected a whole number of 0 or more, got {_brief(value)}")


def _find_self(cluster: _Cluster, facts: Facts) -> TaskKey:
    """Returns the one task whose host is this machine, for an environment that is the same on all hosts."""
    own = [task for task, endpoint in cluster.addresses.items() if facts.is_own_host(endpoint.host)]
    if len(own) == 1:
        return own[0]
    if not own:
        raise ConfigError(f"{cluster.where} has no 'task', and lists no address of this machine: set 'task'")
    names = ", ".join(str(task) for task in own)
    raise ConfigError(f"{cluster.where} has no 'task', and several tasks are on this machine ({names}): set 'task'")


# ---- the world ------------------------------------------------------------------------------------------------------


def _world(cluster: _Cluster, task: TaskKey, size: int | None) -> tuple[TaskKey, ...]:
    listed = trainers(cluster.addresses)
    if not cluster.sparse:
        if size is not None and size != len(listed):
            raise ConfigError(f"{variable('size')}={size}, but {cluster.where} lists {len(listed)} trainers")
        return listed
    if size is None:
        raise ConfigError(
            f"{cluster.where} lists workers by index, so there may be more of them: say with {variable('size')} how "
            "many processes train"
        )
    chief = tuple(one for one in {*listed, task} if one.type == CHIEF)
    return trainers((*chief, *workers(size - len(chief))))


def _check_member(cluster: _Cluster, task: TaskKey, world: Sequence[TaskKey]) -> None:
    if task.is_trainer and task not in world:
        known = ", ".join(str(one) for one in world) or "no trainers"
        raise ConfigError(f"{cluster.where}: this process is {task}, but the world is {known}")


def _address_of_first(cluster: _Cluster, first: TaskKey) -> Endpoint:
    endpoint = cluster.addresses.get(first)
    if endpoint is None:
        raise ConfigError(
            f"{cluster.where} does not say where {first} (rank 0) is: set {variable('rendezvous')}=HOST:PORT to a "
            "free port of its host"
        )
    return endpoint


def _brief(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ---- the variables --------------------------------------------------------------------------------------------------


def _tf_config_text(facts: Facts) -> str:
    """The variable, or what it was before an earlier ``init()`` of this process took it away."""
    return facts.environ.get(TF_CONFIG, "").strip() or facts.settings.tf_config or ""


def _is_tf_config_present(facts: Facts) -> bool:
    text = _tf_config_text(facts)
    return bool(text) and _cluster_of(_load(text, TF_CONFIG)) is not None


def check_task_without_cluster(facts: Facts, advice: str) -> None:
    """Checks TF_CONFIG without a cluster: as for TensorFlow, the only task of a job of one process is its first
    trainer. Raises ConfigError for any other task; ``advice`` says what else can be done."""
    text = _tf_config_text(facts)
    task = _read_task(_load(text, TF_CONFIG).get("task"), TF_CONFIG) if text else None
    if task is not None and not (task.is_trainer and task.index == 0):
        raise ConfigError(
            f"{TF_CONFIG}: this process is {task}, but there is no cluster, or an empty one, so nothing says who the "
            f"others are: add 'cluster' with the addresses of all tasks; {advice}"
        )


def _parse_tf_config(facts: Facts) -> Claim:
    return _claim(_load(_tf_config_text(facts), TF_CONFIG), TF_CONFIG, facts)


def _is_vertex_present(facts: Facts) -> bool:
    text = facts.environ.get(_CLUSTER_SPEC, "")
    if "workerpool" not in text:
        return False  # others use the name for clusters of their own kind
    cluster = _load(text, _CLUSTER_SPEC).get("cluster")
    return isinstance(cluster, Mapping) and any(name in _POOLS and members for name, members in cluster.items())


def _parse_vertex(facts: Facts) -> Claim:
    """Like TF_CONFIG, with pools of workers in place of roles."""
    document = dict(_load(facts.environ[_CLUSTER_SPEC], _CLUSTER_SPEC))
    cluster, task = document.get("cluster"), document.get("task")
    if isinstance(cluster, Mapping):
        document["cluster"] = {_POOLS.get(name, name): members for name, members in cluster.items()}
    if isinstance(task, Mapping):
        document["task"] = {**task, "type": _POOLS.get(str(task.get("type")), task.get("type"))}
    return _claim(document, _CLUSTER_SPEC, facts)


#: The first is written by any tool (TFJob, TonY, Ray, Vertex AI, people).
SOURCES = (
    Source("tf_config", f"{TF_CONFIG} with a cluster that is not empty", _is_tf_config_present, _parse_tf_config),
    Source("vertex", f"{_CLUSTER_SPEC} with workerpool0", _is_vertex_present, _parse_vertex),
)
