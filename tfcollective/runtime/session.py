"""One membership of this process in a world: how it comes together and how it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tfcollective._native import Library, load
from tfcollective.clock import Deadline
from tfcollective.communicator import Communicator, CommunicatorOptions, Listener
from tfcollective.errors import CollectiveAbortedError, InternalError, PeerLostError, StateError, TfCollectiveError
from tfcollective.identity import Identity
from tfcollective.log import get_logger
from tfcollective.runtime.crash import CrashHook
from tfcollective.runtime.heartbeat import Heartbeat
from tfcollective.runtime.interrupt import InterruptWatch
from tfcollective.runtime.recorder import TimelineRecorder
from tfcollective.runtime.watched import call_watched
from tfcollective.settings import Settings
from tfcollective.topology import SINGLE, Placement, World

if TYPE_CHECKING:
    from tfcollective.coordinator.client import CoordinatorClient

__all__ = ["Session", "open_session"]

GLOBAL_WORLD = 0
_LOOPBACK = "127.0.0.1"
_LEAVE_TIMEOUT_S = 10.0
_BROKEN_LEAVE_TIMEOUT_S = 0.5
_WATCH_S = 5.0
_LOG = get_logger(__name__)


class Session:
    """A process's place in a world, its communicator, and the threads that watch over it.

    A world of one rank has no communicator until somebody asks for it, and no threads unless a launcher wants
    its heartbeat. A side task (an evaluator, a TensorBoard) is outside the world: it has no placement.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        placement: Placement | None,
        communicator: Communicator | None = None,
        client: CoordinatorClient | None = None,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self._placement = placement
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._communicator = communicator
        self._client = client
        self._crash = CrashHook(settings.failure_file, self.abort, self.ended_by_peer)
        self._heartbeat: Heartbeat | None = None
        self._interrupt: InterruptWatch | None = None
        self._recorder: TimelineRecorder | None = None

    @property
    def placement(self) -> Placement:
        """The place in the world. Raises StateError for a side task."""
        if self._placement is None:
            raise self._outside()
        return self._placement

    @property
    def size(self) -> int:
        """How many ranks the world has, seen from inside or outside."""
        return self.identity.world_size if self._placement is None else self._placement.size

    def _outside(self) -> StateError:
        return StateError(f"this process is {self.identity.task}: it is outside the world and has no rank")

    def start(self) -> None:
        """Starts watching: crashes, heartbeat, Ctrl-C."""
        self._crash.install()
        if self._client is not None:
            self._heartbeat = Heartbeat(self._client, self.identity.task, self._report, self._coordinator_lost)
            self._heartbeat.start()
        if self._communicator is not None:
            self._interrupt = InterruptWatch(self._communicator.info, self.abort)
            self._interrupt.start()
        if self.settings.timeline is not None and self._placement is not None:
            self.start_timeline(self.settings.timeline)

    def communicator(self) -> Communicator:
        """The communicator; made now if the world has one rank. Raises StateError for a side task."""
        with self._lock:
            if self._communicator is None:
                if self._placement is None:
                    raise self._outside()
                self._communicator = Communicator.alone(library=_library(self.settings))
            return self._communicator

    def start_timeline(self, path: str) -> None:
        """Records a timeline until :meth:`stop_timeline` or the end; rank 0 writes it to `path`.

        Raises:
            StateError: one is being recorded.
            ConfigError: the file cannot be written.
        """
        if self._recorder is not None:
            raise StateError("a timeline is being recorded already: call stop_timeline() first")
        recorder = TimelineRecorder(path, self.communicator(), self.placement, self._client)
        recorder.start()
        self._recorder = recorder

    def stop_timeline(self) -> None:
        """Ends the timeline and writes it. Does nothing when none is being recorded."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.finish()

    def abort(self, cause: str) -> None:
        """Tells all ranks to stop, because of `cause`."""
        communicator = self._communicator
        if communicator is not None and not communicator.closed:
            communicator.abort(cause)

    def ended_by_peer(self) -> bool:
        """Whether the world is broken because another rank was lost or asked all to stop."""
        communicator = self._communicator
        failure = communicator.failure() if communicator is not None and not communicator.closed else None
        return isinstance(failure, PeerLostError | CollectiveAbortedError)

    def close(self) -> None:
        """Leaves the world: no more watching, the communicator closed, the coordinator told."""
        self._crash.remove()
        self.stop_timeline()
        if self._interrupt is not None:
            self._interrupt.stop()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._close_communicator()
        if self._client is not None:
            self._leave(self._client)

    def forget(self) -> None:
        """In a forked child: give nothing back, it is the parent's."""
        if self._interrupt is not None:
            self._interrupt.forget()

    def _close_communicator(self) -> None:
        communicator = self._communicator
        if communicator is None:
            return
        broken = communicator.info().broken
        try:
            if self.placement.size > 1:
                _forget_world(_library(self.settings))
            communicator.close(_BROKEN_LEAVE_TIMEOUT_S if broken else _LEAVE_TIMEOUT_S)
        except TfCollectiveError as error:
            _LOG.warning("leaving the world: %s", error)

    def _leave(self, client: CoordinatorClient) -> None:
        try:
            client.leave(self.identity.task)
        except TfCollectiveError as error:
            _LOG.debug("the coordinator did not hear us leave: %s", error)
        client.close()

    def _report(self) -> tuple[str, Mapping[str, object]]:
        communicator = self._communicator
        if communicator is None:
            return "running", {}
        info = communicator.info()
        state = "broken" if info.broken else "running"
        return state, {"completed": info.completed, "pending": info.pending}

    def _coordinator_lost(self, cause: str) -> None:
        _LOG.error("%s", cause)
        self.abort(cause)


def open_session(settings: Settings, identity: Identity) -> Session:
    """Joins the world that `identity` names, and connects to its ranks.

    Raises:
        RendezvousError: the ranks did not come together in time; names the missing tasks.
        ConfigError: the native library does not load, or a job key is needed and there is none.
        CoordinatorError: the coordinator was lost, or whoever answers does not hold the job key.
    """
    if not identity.task.is_trainer:
        return Session(settings, identity, None)
    if identity.coordinator is None:
        return Session(settings, identity, SINGLE)
    if not identity.without_launcher:
        return _join_world(settings, identity)
    from tfcollective.runtime.meeting import abandon, arrange

    meeting = arrange(settings, identity)
    try:
        return _join_world(
            replace(settings, bind_host=meeting.bind_host),
            replace(identity, coordinator=meeting.endpoint, key=meeting.key),
        )
    except BaseException:
        abandon()
        raise


def _join_world(settings: Settings, identity: Identity) -> Session:
    if identity.coordinator is None or identity.key is None:
        raise InternalError("a world of several ranks has a coordinator and a key")
    from tfcollective.coordinator.client import CoordinatorClient

    client = CoordinatorClient(identity.coordinator, identity.key)
    try:
        if identity.world_size == 1:
            world = _join(client, settings, identity, address="")
            return Session(settings, identity, world.placement(identity.task), None, client)
        return _open_connected(client, settings, identity)
    except BaseException:
        client.close()
        raise


def _open_connected(client: CoordinatorClient, settings: Settings, identity: Identity) -> Session:
    library = _library(settings)
    listener = Listener(settings.bind_host or _LOOPBACK, identity.node_id, library=library)
    try:
        world = _join(client, settings, identity, listener.address)
        placement = world.placement(identity.task)
        communicator = call_watched(
            lambda: Communicator.connect(
                listener,
                rank=placement.rank,
                addresses=world.addresses,
                key=identity.key or b"",
                generation=world.generation,
                options=_options(settings),
                library=library,
            ),
            lambda: client.lost_member(world.generation, timeout=_WATCH_S),
            Deadline.after(settings.start_timeout),
        )
    except BaseException:
        listener.close()
        raise
    communicator._set_as_world(GLOBAL_WORLD)
    return Session(settings, identity, placement, communicator, client)


def _join(client: CoordinatorClient, settings: Settings, identity: Identity, address: str) -> World:
    return client.join(
        identity.task,
        size=identity.world_size,
        node=identity.node_id,
        pid=os.getpid(),
        address=address,
        timeout=settings.start_timeout,
    )


def _options(settings: Settings) -> CommunicatorOptions:
    return CommunicatorOptions(
        connect_timeout=settings.start_timeout,
        op_timeout=settings.op_timeout,
        stall_warning=settings.stall_warning,
        transport=settings.transport,
    )


def _library(settings: Settings) -> Library:
    return load(settings.library)


def _forget_world(library: Library) -> None:
    library.call("tfc_world_set", GLOBAL_WORLD, None)
