"""What ranks need to run on Horovod's own engine, with our coordinator in the place of horovodrun: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tfcollective.settings import variable
from tfcollective.topology import Endpoint, Placement

__all__ = ["engine_variables", "interface_of", "meeting_variables", "scopes_of", "with_interface"]

_INTERFACE = "HOROVOD_GLOO_IFACE"


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


def with_interface(
    env: Mapping[str, str], address: str | None, interfaces: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The variables with the name of the interface that has ``address``, which Gloo wants to know. Only for ranks that
    run on Horovod's engine; what the user has chosen stays."""
    found = interface_of(interfaces, address)
    if env.get(variable("engine")) != "horovod" or _INTERFACE in env or found is None:
        return dict(env)
    return {**env, _INTERFACE: found}


def interface_of(interfaces: Mapping[str, Sequence[str]], address: str | None) -> str | None:
    """The name of the interface with this address, or None."""
    return next((name for name, addresses in interfaces.items() if address in addresses), None)
