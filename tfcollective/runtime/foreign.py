"""Joining the world of another engine, which knows rank, size and nodes itself."""

from __future__ import annotations

from dataclasses import replace

from tfcollective.engines import open_engine
from tfcollective.errors import ConfigError
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
    communicator = None
    try:
        communicator = open_engine(settings.engine, settings.op_timeout)
        place = communicator.placement
        if not launched:
            identity = _identity_at(place, identity)
        if world is not None:
            _check_place(place, world.placement(identity.task), settings.engine)
        session = Session(settings, identity, place, communicator, client, world)
        if world is None:
            sizes = communicator.allgather([place.local_size], name="ranks of each node")
            session.homogeneous = len(set(sizes.tolist())) == 1
    except BaseException:
        if communicator is not None:
            communicator.close()
        if client is not None:
            client.close()
        raise
    return session


def _check_place(place: Placement, launched: Placement, engine: str) -> None:
    if (place.rank, place.size) != (launched.rank, launched.size):
        raise ConfigError(
            f"the engine {engine} says that this process is rank {place.rank} of {place.size}, the launcher that it is "
            f"rank {launched.rank} of {launched.size}: start the job with --engine {engine}"
        )


def _identity_at(place: Placement, alone: Identity) -> Identity:
    return replace(alone, task=workers(place.size)[place.rank], world_size=place.size)
