"""Environment variables for ranks whose scripts expect another launcher: torchrun's and Horovod's names for ranks,
``TF_CONFIG``, where ranks of JAX and torch meet, and what Horovod's own engine needs. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping

from tfcollective._base.settings import variable
from tfcollective._base.tasks import TaskKey
from tfcollective._base.topology import Endpoint, Placement
from tfcollective._launch.agent.protocol import FIRST_MODULES, HOROVOD_PACKAGES

PYTHONPATH = "PYTHONPATH"
PYTHONHASHSEED = "PYTHONHASHSEED"


def rank_variables(place: Placement, given: Mapping[str, str]) -> dict[str, str]:
    """``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``: scripts choose their GPU or their share of the
    data by them before they call ``init()``. Those of ``given``, what the user sets for the ranks, are left out.
    """
    words = {
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
    }
    return {word: str(value) for word, value in words.items() if word not in given}


def meeting_variables(rank: int, size: int, place: Endpoint) -> dict[str, str]:
    """Returns what ``keras.distribution.initialize()``, ``jax.distributed.initialize()`` and ``torch.distributed``
    read: the rank, the size, and the ``place`` where rank 0 listens."""
    return {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": str(place),
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(size),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
        "JAX_COORDINATOR_ADDRESS": str(place),
        "JAX_NUM_PROCESSES": str(size),
        "JAX_PROCESS_ID": str(rank),
        "MASTER_ADDR": place.host,
        "MASTER_PORT": str(place.port),
    }


def tf_config(task: TaskKey, endpoints: Mapping[TaskKey, Endpoint]) -> str:
    """``TF_CONFIG`` of ``task``, for scripts that use ``tf.distribute``: the trainers among these tasks, given in rank
    order, and the task itself, whose TensorFlow server listens on the port that is given for it.

    Other auxiliary tasks are left out, as TensorFlow's server would wait for them.
    """
    cluster: dict[str, list[str]] = {}
    for member, endpoint in endpoints.items():
        if member.is_trainer or member == task:
            cluster.setdefault(member.type, []).append(str(endpoint))
    return json.dumps({"cluster": cluster, "task": {"type": task.type, "index": task.index}})


def _horovod_place(place: Placement) -> dict[str, str]:
    """The ranks and sizes under the names that Horovod's launcher gives them."""
    return {
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.cross_rank),
        "HOROVOD_CROSS_SIZE": str(place.cross_size),
    }


def module_variables(environ: Mapping[str, str], *, compat: bool, data_parallel: bool) -> dict[str, str]:
    """Returns the PYTHONPATH for ``import horovod``, and for the module that Python runs first; with ``data_parallel``
    also the seed of hashes: sets of strings have one order on all ranks.

    Args:
        environ: what the rank inherits; modules that its PYTHONPATH leads to stay reachable.
        compat: ``--horovod-compat``.
        data_parallel: ``--data-parallel``.
    """
    added = [str(FIRST_MODULES)] * data_parallel + [str(HOROVOD_PACKAGES)] * compat
    inherited = [environ[PYTHONPATH]] if environ.get(PYTHONPATH) else []
    seed = environ.get(PYTHONHASHSEED, "random")
    hashes = {PYTHONHASHSEED: "0" if seed == "random" else seed} if data_parallel else {}
    return {PYTHONPATH: os.pathsep.join([*added, *inherited]), **hashes} if added else {}


def compat_variables(place: Placement, host: str, *, elastic: bool) -> dict[str, str]:
    """Returns the variables that a script written for Horovod expects.

    Args:
        place: the rank's.
        host: the name by which its host was given.
        elastic: whether the job is.
    """
    named = {"HOROVOD_HOSTNAME": host, **({"HOROVOD_ELASTIC": "1"} if elastic else {})}
    return {**_horovod_place(place), **named}


def newcomer_variables(place: Placement, host: str, given: Mapping[str, str], *, compat: bool) -> dict[str, str]:
    """Returns the variables of a process that joins a running job which differ from those of others: its place, as far
    as it is known at its start, and with ``compat`` Horovod's names for it. Leaves out those in ``given``."""
    horovod = {**_horovod_place(place), "HOROVOD_HOSTNAME": host} if compat else {}
    return {**rank_variables(place, given), **{word: value for word, value in horovod.items() if word not in given}}


def engine_variables(place: Placement, node: int, op_timeout: float) -> dict[str, str]:
    """Returns the variables for Horovod's own engine, with our coordinator in place of horovodrun.

    Args:
        place: the rank's.
        node: the number of its node. Horovod tells nodes apart by a name, and two containers may have the same one.
        op_timeout: how long (s) Horovod may wait for a peer.
    """
    return {
        **_horovod_place(place),
        "HOROVOD_HOSTNAME": f"node-{node}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, int(op_timeout))),
        # Without it Horovod waits forever for a rank that does not come; it must be later than the warning.
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(min(60.0, op_timeout / 2)))),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(max(2, int(op_timeout))),
    }


def rendezvous_variables(store: Endpoint) -> dict[str, str]:
    """Returns the variables that tell Horovod's ranks where to meet."""
    return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": store.host, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store.port)}


def scopes_of(ranks: Iterable[Mapping[str, str]]) -> dict[str, int]:
    """The scopes in which ranks with these variables find each other, and how many ranks each has."""
    scopes: dict[str, int] = {}
    for env in ranks:
        scopes["global"] = int(env["HOROVOD_SIZE"])
        scopes[f"local_{env['HOROVOD_HOSTNAME']}"] = int(env["HOROVOD_LOCAL_SIZE"])
        scopes[f"cross_{env['HOROVOD_LOCAL_RANK']}"] = int(env["HOROVOD_CROSS_SIZE"])
    return scopes


_MEBIBYTE = 1 << 20


def bucket_variables(size: float | str | None) -> dict[str, str]:
    """Returns the variables for the size of buckets, in MiB or ``auto``; none for None."""
    if size is None:
        return {}
    return {variable("bucket_bytes"): size if isinstance(size, str) else str(max(1, int(size * _MEBIBYTE)))}


def gpu_options(each: int | None, shared: bool) -> dict[str, str]:
    """Returns the variables that give each rank ``each`` GPUs; None: all. ``shared``: several ranks may use one."""
    wanted = {} if each is None else {variable("gpus_per_proc"): str(each)}
    return {**wanted, variable("share_gpus"): "1"} if shared else wanted
