"""Joining the world of another engine, which knows rank, size and nodes itself."""

from __future__ import annotations

from dataclasses import replace

from tfcollective.engines import open_engine
from tfcollective.identity import Identity, discover
from tfcollective.runtime.session import Session, join_coordinator
from tfcollective.settings import Settings
from tfcollective.tasks import workers
from tfcollective.topology import Placement

__all__ = ["open_foreign_session"]


def open_foreign_session(settings: Settings, environ: dict[str, str]) -> Session:
    """A session on the engine of the settings. Under our launcher the coordinator hears of this rank first, and names
    the ones that are missing.

    Raises:
        ConfigError: the engine is not installed.
        RendezvousError: the ranks did not come together in time.
    """
    launched = settings.coordinator is not None
    identity = discover(settings if launched else replace(settings, identity="single"), environ)
    if launched and not identity.task.is_trainer:
        return Session(settings, identity, None)
    client, world = join_coordinator(settings, identity) if launched else (None, None)
    try:
        communicator = open_engine(settings.engine, settings.op_timeout)
        place = communicator.placement
        if not launched:
            identity = _identity_at(place, identity)
        session = Session(settings, identity, place, communicator, client, world)
        if world is None:
            sizes = communicator.allgather([place.local_size], name="ranks of each node")
            session.homogeneous = len(set(sizes.tolist())) == 1
    except BaseException:
        if client is not None:
            client.close()
        raise
    return session


def _identity_at(place: Placement, alone: Identity) -> Identity:
    return replace(alone, task=workers(place.size)[place.rank], world_size=place.size)
