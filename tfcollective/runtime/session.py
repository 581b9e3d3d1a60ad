"""One membership of this process in a world: how it comes together and how it ends."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tfcollective._native import Library, load
from tfcollective.clock import Deadline
from tfcollective.communicator import Communicator, CommunicatorInfo, CommunicatorOptions, Listener
from tfcollective.control.liveness import Heartbeat
from tfcollective.descriptors import raise_limit
from tfcollective.errors import (
    CollectiveAbortedError,
    CollectiveError,
    InternalError,
    PeerLostError,
    StateError,
    TfCollectiveError,
)
from tfcollective.identity import Identity
from tfcollective.job_keys import RANKS, derived_key
from tfcollective.log import get_logger
from tfcollective.runtime.crash import CrashHook
from tfcollective.runtime.interrupt import InterruptWatch
from tfcollective.runtime.process_sets import GLOBAL_SET, Members, ProcessSet, ProcessSets, global_process_set
from tfcollective.runtime.recorder import TimelineRecorder
from tfcollective.runtime.watched import call_watched
from tfcollective.settings import Settings
from tfcollective.topology import SINGLE, Placement, World

if TYPE_CHECKING:
    from tfcollective.control.client import CoordinatorClient
    from tfcollective.engines import ForeignCommunicator

__all__ = ["Session", "join_coordinator", "open_session"]

_LOOPBACK = "127.0.0.1"
_LEAVE_TIMEOUT_S = 10.0
_BROKEN_LEAVE_TIMEOUT_S = 0.5
_WATCH_S = 5.0
_LOG = get_logger(__name__)


class Session:
    """A process's place in a world, its communicator, and the threads that watch over it.

    A world of one rank has no communicator until somebody asks for it, and no threads unless a launcher wants
    its heartbeat. An auxiliary task (an evaluator, a TensorBoard) is outside the world: it has no placement. Under
    a launcher it has a client, so that it can tell the coordinator about itself.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        placement: Placement | None,
        communicator: Communicator | None = None,
        client: CoordinatorClient | None = None,
        world: World | None = None,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self._placement = placement
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._communicator = communicator
        self._client = client
        self._generation = world.generation if world is not None else 0
        self.homogeneous = world is None or world.homogeneous
        self.process_sets = ProcessSets(
            self.communicator, self._listen, self._connect_set, self._announce, self._dismiss
        )
        self._crash = CrashHook(settings.failure_file, self.abort, self.ended_by_peer)
        self._heartbeat: Heartbeat | None = None
        self._published: dict[str, object] = {}
        self._interrupt: InterruptWatch | None = None
        self._recorder: TimelineRecorder | None = None

    @property
    def placement(self) -> Placement:
        """The place in the world. Raises StateError for an auxiliary task."""
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
        if self._placement is not None:
            global_process_set._register(GLOBAL_SET, self.members.ranks, self._placement.rank)
        self._crash.install()
        if self._client is not None:
            self._heartbeat = Heartbeat(partial(self._beat, self._client), self._coordinator_lost)
            self._heartbeat.start()
        if self._communicator is not None:
            self._interrupt = InterruptWatch(self._info, self.abort)
            self._interrupt.start()
        if self.settings.timeline is not None and self._placement is not None:
            self.start_timeline(self.settings.timeline)

    def communicator(self) -> Communicator:
        """The communicator; made now if the world has one rank. Raises StateError for an auxiliary task."""
        with self._lock:
            if self._communicator is None:
                if self._placement is None:
                    raise self._outside()
                self._communicator = self._alone()
            return self._communicator

    def publish(self, info: Mapping[str, object]) -> None:
        """Adds to what the coordinator knows of this task, at once and with every heartbeat from now on."""
        from tfcollective.control.published import write_published

        # A new one: the heartbeat may be reading the old.
        self._published = {**self._published, **write_published(info)}
        if self._heartbeat is not None:
            self._heartbeat.beat()

    def training_ended(self) -> bool:
        """Whether rank 0's process has ended, as far as the coordinator is known to say so."""
        if self._client is None:
            return False
        from tfcollective.control.protocol import TRAINING_ENDED

        try:
            return self._client.get(TRAINING_ENDED) is not None
        except TfCollectiveError as error:  # a launcher that is gone for good ends its processes by itself
            _LOG.debug("cannot ask whether training has ended: %s", error)
            return False

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

    @functools.cached_property
    def members(self) -> Members:
        """All ranks. Raises StateError for an auxiliary task."""
        return Members(GLOBAL_SET, tuple(range(self.placement.size)), self.placement.rank)

    def members_of(self, process_set: ProcessSet | None) -> Members:
        """The ranks that a collective with this argument is of.

        Raises:
            InvalidArgumentError: it is no registered process set.
        """
        if process_set is None or process_set is global_process_set:
            return self.members
        return self.process_sets.members(process_set)

    def members_of_world(self, number: int) -> Members:
        """The process set with this number; InvalidArgumentError if there is none."""
        return self.members if number == GLOBAL_SET else self.process_sets.members_of(number)

    def communicator_of(self, members: Members) -> Communicator:
        """The members' communicator."""
        found = None if members.world == GLOBAL_SET else self.process_sets.communicator(members)
        return found or self.communicator()

    def abort(self, cause: str) -> None:
        """Tells all ranks to stop, because of `cause`."""
        for communicator in self._open_communicators():
            communicator.abort(cause)

    def ended_by_peer(self) -> CollectiveError | None:
        """The error with which another rank, that was lost or asked all to stop, has broken the world; or None."""
        failures = (communicator.failure() for communicator in self._open_communicators())
        return next((one for one in failures if isinstance(one, PeerLostError | CollectiveAbortedError)), None)

    def _open_communicators(self) -> list[Communicator]:
        """The world's first, then those of process sets."""
        world = [] if self._communicator is None else [self._communicator]
        return [one for one in (*world, *self.process_sets.communicators()) if not one.closed]

    def _info(self) -> CommunicatorInfo:
        """The world's state, with the operations of all communicators."""
        infos = [communicator.info() for communicator in self._open_communicators()]
        return replace(
            infos[0] if infos else self.communicator().info(),
            completed=sum(info.completed for info in infos),
            pending=sum(info.pending for info in infos),
        )

    def _foreign(self) -> ForeignCommunicator | None:
        """The communicator, if it is another engine's."""
        if self.settings.engine == "native":
            return None
        from tfcollective.engines import ForeignCommunicator

        return self._communicator if isinstance(self._communicator, ForeignCommunicator) else None

    def _alone(self) -> Communicator:
        return Communicator.alone(options=_options(self.settings), library=_library(self.settings))

    def _listen(self) -> Listener:
        if self._foreign() is not None:
            from tfcollective.engines import NoListener

            return NoListener()
        return Listener(self.settings.bind_host or _LOOPBACK, self.identity.node_id, library=_library(self.settings))

    def _announce(self, members: Members) -> None:
        foreign = self._foreign()
        if foreign is not None:
            foreign.announce(members.ranks)

    def _dismiss(self, members: Members) -> None:
        foreign = self._foreign()
        if foreign is not None:
            foreign.dismiss(members.ranks)

    def _connect_set(self, listener: Listener | None, members: Members, addresses: Sequence[str]) -> Communicator:
        if listener is None:
            return self._alone()
        foreign = self._foreign()
        if foreign is not None:
            return foreign.subset(members.ranks)
        client = self._client
        return call_watched(
            lambda: Communicator.connect(
                listener,
                rank=members.rank,
                addresses=addresses,
                key=_rank_key(self.identity),
                generation=(self._generation << 32) + members.world,  # strays of another set are refused
                world_ranks=members.ranks,
                options=_options(self.settings),
                library=_library(self.settings),
            ),
            lambda: None if client is None else client.lost_member(self._generation, timeout=_WATCH_S),
            Deadline.after(self.settings.start_timeout),
        )

    def close(self) -> None:
        """Leaves the world: no more watching, the communicator closed, the coordinator told."""
        self._crash.remove()
        self.stop_timeline()
        if self._interrupt is not None:
            self._interrupt.stop()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._close_process_sets()
        self._close_communicator()
        if self._client is not None:
            self._leave(self._client)

    def forget(self) -> None:
        """In a forked child: give nothing back, it is the parent's."""
        if self._interrupt is not None:
            self._interrupt.forget()

    def _close_process_sets(self) -> None:
        broken = any(communicator.info().broken for communicator in self._open_communicators())
        try:
            self.process_sets.close(_BROKEN_LEAVE_TIMEOUT_S if broken else _LEAVE_TIMEOUT_S)
        except TfCollectiveError as error:
            _LOG.warning("leaving the process sets: %s", error)
        global_process_set._forget()
        global_process_set.ranks = None

    def _close_communicator(self) -> None:
        communicator = self._communicator
        if communicator is None:
            return
        broken = communicator.info().broken
        timeout = _BROKEN_LEAVE_TIMEOUT_S if broken else _LEAVE_TIMEOUT_S
        try:
            if self.placement.size > 1:
                communicator._clear_world(GLOBAL_SET)
            communicator.close(timeout)
        except TfCollectiveError as error:
            _LOG.warning("leaving the world: %s", error)

    def _leave(self, client: CoordinatorClient) -> None:
        try:
            client.leave(self.identity.task)
        except TfCollectiveError as error:
            _LOG.debug("the coordinator did not hear us leave: %s", error)
        client.close()

    def _report(self) -> tuple[str, Mapping[str, object]]:
        published = self._published
        if self._communicator is None:
            return "running", published
        info = self._info()
        state = "broken" if info.broken else "running"
        return state, {**published, "completed": info.completed, "pending": info.pending}

    def _beat(self, client: CoordinatorClient) -> None:
        client.heartbeat(self.identity.task, *self._report())

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
        return _open_beside(settings, identity)
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


def _open_beside(settings: Settings, identity: Identity) -> Session:
    """An auxiliary task's: where a launcher has started a coordinator, it hears of the task."""
    if identity.coordinator is None or identity.key is None or identity.without_launcher:
        return Session(settings, identity, None)
    return Session(settings, identity, None, client=_client(settings, identity))


def _join_world(settings: Settings, identity: Identity) -> Session:
    raise_limit()  # a rank may hold several connections to every other one
    client = _client(settings, identity)
    try:
        if identity.world_size == 1:
            world = _join(client, settings, identity, address="")
            return Session(settings, identity, world.placement(identity.task), None, client, world)
        return _open_connected(client, settings, identity)
    except BaseException:
        client.close()
        raise


def join_coordinator(settings: Settings, identity: Identity) -> tuple[CoordinatorClient, World]:
    """Under a launcher, without a communicator of ours: the coordinator's client, and the world as it sees it."""
    client = _client(settings, identity)
    try:
        return client, _join(client, settings, identity, address="")
    except BaseException:
        client.close()
        raise


def _client(settings: Settings, identity: Identity) -> CoordinatorClient:
    if identity.coordinator is None or identity.key is None:
        raise InternalError("a world of several ranks, or of a launcher, has a coordinator and a key")
    from tfcollective.control.client import CoordinatorClient

    return CoordinatorClient(identity.coordinator, identity.key, identity.job_id, encryption=settings.encryption)


def _rank_key(identity: Identity) -> bytes:
    """What the ranks' connections are proved with: no other job's, even if it was given the same key."""
    return derived_key(identity.key or b"", RANKS, identity.job_id)


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
                key=_rank_key(identity),
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
    communicator._set_as_world(GLOBAL_SET)
    return Session(settings, identity, placement, communicator, client, world)


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
        nccl=settings.nccl,
        cuda_driver=settings.cuda_driver,
        share_gpus=settings.share_gpus,
        link_probe=settings.link_probe,
    )


def _library(settings: Settings) -> Library:
    return load(settings.library)
