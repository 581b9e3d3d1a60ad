"""What ranks need to run on Horovod's own engine, with our coordinator in the place of horovodrun: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tfcollective.topology import Endpoint, Placement

__all__ = ["engine_variables", "meeting_variables", "scopes_of"]


def engine_variables(place: Placement, node: int, op_timeout: float) -> dict[str, str]:
    """One rank's place, as Horovod's launcher says it.

    Args:
        place: the rank's.
        node: the number of its node. Horovod tells nodes apart by a name, and two containers may have the same one.
        op_timeout: how long (s) Horovod may wait for a peer.
    """
    return {
        "HOROVOD_RANK": str(place.rank),
        "HOROVOD_SIZE": str(place.size),
        "HOROVOD_LOCAL_RANK": str(place.local_rank),
        "HOROVOD_LOCAL_SIZE": str(place.local_size),
        "HOROVOD_CROSS_RANK": str(place.cross_rank),
        "HOROVOD_CROSS_SIZE": str(place.cross_size),
        "HOROVOD_HOSTNAME": f"node-{node}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, int(op_timeout))),
        # Without it Horovod waits for ever for a rank that does not come; it must be later than the warning.
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(min(60.0, op_timeout / 2)))),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(max(2, int(op_timeout))),
    }


def meeting_variables(store: Endpoint) -> dict[str, str]:
    """Where Horovod's ranks meet."""
    return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": store.host, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store.port)}


def scopes_of(ranks: Iterable[Mapping[str, str]]) -> dict[str, int]:
    """The scopes in which ranks with these variables meet, and how many ranks each has."""
    scopes: dict[str, int] = {}
    for env in ranks:
        scopes["global"] = int(env["HOROVOD_SIZE"])
        scopes[f"local_{env['HOROVOD_HOSTNAME']}"] = int(env["HOROVOD_LOCAL_SIZE"])
        scopes[f"cross_{env['HOROVOD_LOCAL_RANK']}"] = int(env["HOROVOD_CROSS_SIZE"])
    return scopes
