"""A membership of this process in a world, from the rendezvous to the end."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tfcollective._base.errors import (
    CollectiveAbortedError,
    CollectiveError,
    CollectiveTimeoutError,
    PeerLostError,
    StateError,
    TfCollectiveError,
    UnsupportedError,
)
from tfcollective._base.log import get_logger
from tfcollective._base.settings import environ_snapshot
from tfcollective._base.tasks import TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Placement
from tfcollective._control.client.liveness import Heartbeat
from tfcollective._runtime.change import ChangeWatch
from tfcollective._runtime.change_times import ChangeTimes
from tfcollective._runtime.communicator import Communicator, CommunicatorInfo
from tfcollective._runtime.crash import CrashHook
from tfcollective._runtime.engine import Engine, JoinResult
from tfcollective._runtime.interrupt import InterruptWatch
from tfcollective._runtime.members import GLOBAL_SET, Members
from tfcollective._runtime.native import connect_alone
from tfcollective._runtime.objects import SealedExchange
from tfcollective._runtime.phase import Phase, Training, next_phase
from tfcollective._runtime.process_sets import ProcessSet, ProcessSets, global_process_set
from tfcollective._runtime.recorder import TimelineRecorder
from tfcollective._runtime.trainer_status import TrainerStatus

if TYPE_CHECKING:
    from tfcollective._control.client.client import CoordinatorClient
    from tfcollective._control.client.relay import TaskBeat

_LOG = get_logger(__name__)
_OF_A_PEER = (PeerLostError, CollectiveAbortedError, CollectiveTimeoutError)
# What programs import that takes seconds.
_SLOW_IMPORTS = (
    *("tensorflow", "keras", "tf_keras", "pandas", "sklearn", "jax", "torch"),
    *("tfcollective.tensorflow", "tfcollective.keras", "horovod.tensorflow", "horovod.tensorflow.keras"),
)


def lost_rank(error: CollectiveError | None) -> int | None:
    """The rank whose connection has ended, if this error of a world says so. One that did not come in time may be slow,
    and one that has asked all to stop lives: it comes to the next world, or its agent sees its end."""
    return error.peer if isinstance(error, PeerLostError) else None


class Session:
    """A process's membership in a world, and the threads that watch over it.

    A world of one rank has no communicator until it is needed, and no threads unless a launcher wants its heartbeat.
    An auxiliary task (an evaluator, a TensorBoard) is outside the world: it has no placement. Under a launcher it has a
    client, so that it can tell the coordinator about itself.

    ``heard`` is called, on rank 0, with each generation for which the coordinator wants the members to meet.
    """

    def __init__(
        self, engine: Engine, joined: JoinResult, heard: Callable[[int], None] = lambda generation: None
    ) -> None:
        self.engine = engine
        self._heard_change = heard
        self.settings = joined.settings
        self.identity = joined.identity
        self.homogeneous = joined.homogeneous
        self.generation = joined.generation
        self._tasks = joined.tasks
        self._placement = joined.placement
        self._phase = Phase.IN_WORLD if joined.settings.newcomer is None else Phase.WAITING
        # The world's, if it has been needed, then that of this rank alone while it is :meth:`solo`.
        self._communicators = [] if joined.communicator is None else [joined.communicator]
        self._change: ChangeWatch | None = None
        self.change_times = ChangeTimes(lambda times: self.publish({"change": times}))
        self.leaving = ""
        """Why this rank is to leave an elastic job at the next commit; "": it stays."""
        self._training = Training.NONE
        self.without_state = self.newcomer and joined.placement is not None and joined.placement.rank > 0
        """True if it has come to a job that trains already, and has yet to take the state of the others."""
        self._client = joined.client
        self.pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler that calls shutdown() may interrupt what holds it
        self.sealed = SealedExchange(joined.identity.key, joined.identity.job_id)
        self.sealed.enter(joined.generation)
        self.process_sets = ProcessSets(self.communicator, engine, self.sealed)
        self._crash = CrashHook(
            self._if_launched(self.settings.failure_file), self.abort, self.ended_by_peer, self._say_failing
        )
        self._heartbeat: Heartbeat | None = None
        self._published: dict[str, object] = {}
        self._known = self._published  # what of it the coordinator has
        self._interrupt: InterruptWatch | None = None
        self._recorder: TimelineRecorder | None = None
        first = joined.placement is not None and joined.placement.rank == 0
        self._trainer = TrainerStatus.of(environ_snapshot()) if first else None

    @property
    def newcomer(self) -> bool:
        """True if it waits outside the world until it is ready to train with the others."""
        return self._phase is Phase.WAITING

    @property
    def between_worlds(self) -> bool:
        """See :attr:`Phase.between_worlds`."""
        return self._phase.between_worlds

    def _go(self, phase: Phase) -> None:
        with self._lock:
            self._phase = next_phase(self._phase, phase)

    @property
    def placement(self) -> Placement:
        """The place in the world. Raises StateError for an auxiliary task."""
        if self._placement is None:
            raise self._outside()
        return self._placement

    def _outside(self) -> StateError:
        return StateError(f"this process is {self.identity.task}: it is outside the world and has no rank")

    def _if_launched(self, path: str | None) -> str | None:
        """Returns a path that this rank's agent has named; None if the agent is that of an outer job."""
        return path if self.identity.launched else None

    @property
    def size(self) -> int:
        """The number of ranks in the world, for members and for auxiliary tasks."""
        return self.identity.world_size if self._placement is None else self._placement.size

    def start(self) -> None:
        """Starts watching: crashes, heartbeat, Ctrl-C."""
        if self._placement is not None:
            global_process_set._register(GLOBAL_SET, self.members.ranks, self._placement.rank)
        self._crash.install()
        if self._client is not None:
            from tfcollective._control.client.relay import TaskBeat

            beat = TaskBeat(self._client, self.identity.task, self._if_launched(self.settings.beat_dir))
            self._heartbeat = Heartbeat(partial(self._beat, beat), self._coordinator_lost)
            self._heartbeat.start()
        self._watch_changes()
        if self._communicators:
            self._interrupt = InterruptWatch(self._info, self.abort)
            self._interrupt.start()
        if self.settings.timeline is not None and self._placement is not None:
            self.start_timeline(self.settings.timeline)

    def _watch_changes(self) -> None:
        """Starts the thread in which rank 0 asks the coordinator whether the world will change; it tells the others
        when they meet. Rank 0 stays rank 0 in all later worlds and keeps asking: one thread for all changes."""
        first = self._placement is not None and self._placement.rank == 0
        if self._change is not None and not first:  # it was a newcomer to a job without a world
            self._change.stop()
            self._change = None
        if self._change is None and self.settings.elastic and first and self._client is not None:
            self._change = ChangeWatch(self._client, self._heard_change)

    @property
    def pending(self) -> int:
        """The newest generation for which the members have to meet, as far as this rank knows; or 0."""
        heard = 0 if self._change is None else self._change.pending
        return max(heard, self.generation + 1) if self.leaving else heard

    @property
    def trains(self) -> bool:
        """True while a :meth:`training` is open."""
        return self._training is Training.OPEN

    @contextmanager
    def training(self) -> Iterator[None]:
        """See :func:`tfcollective._runtime.training`."""
        if self.trains:  # one within another
            yield
            return
        if self._training is Training.DONE:
            self._say_done(again=True)
        self._announce_modules()
        self._training = Training.OPEN
        try:
            yield
        except BaseException:
            self._training = Training.NONE
            raise
        self._training = Training.NONE if self.newcomer else Training.DONE
        if not self.newcomer:
            self._say_done()

    def _say_failing(self, cause: str) -> None:
        """The others need not wait for the end of this process, which may take its time, or hang."""
        if self._client is None or not self.identity.task.is_trainer:
            return
        from tfcollective._control.messages import Failing

        try:
            self._client.call(Failing(self.identity.task, cause))
        except TfCollectiveError as error:
            _LOG.debug("the coordinator does not hear of the failure: %s", error)

    def _say_done(self, *, again: bool = False) -> None:
        if self._client is None or not self.settings.elastic:
            return
        from tfcollective._control.client.channel import Channel
        from tfcollective._control.messages import Done

        try:
            Channel(self._client).ask(Done(self.identity.task, again))
        except TfCollectiveError as error:  # a launcher that is gone for good ends its processes by itself
            _LOG.debug("the coordinator does not hear that this rank has completed the training: %s", error)

    def _announce_modules(self) -> None:
        """Rank 0 of an elastic job says what takes long to import here, for spare processes: once the program has
        imported what it needs."""
        if self._client is None or not self.settings.elastic or self._placement is None or self._placement.rank != 0:
            return
        modules = [name for name in _SLOW_IMPORTS if name in sys.modules]
        if not modules:
            return
        from tfcollective._control.store_keys import MODULES

        try:
            self._client.put_blob(MODULES, ",".join(modules).encode())
        except TfCollectiveError as error:
            _LOG.debug("the coordinator did not hear what a spare process is to import: %s", error)

    def agreed_once(self, key: str, value: object) -> Any:
        """A JSON value that is the same for all ranks of all worlds of the job: the one that was there first. Ranks of
        one world must give the same."""
        if self._client is None:
            return value
        from tfcollective._control.client.channel import Channel

        channel = Channel(self._client)
        found = channel.call(lambda client: client.get(f"once/{key}"))
        if found is None:
            channel.call(lambda client: client.put(f"once/{key}", value))
            return value
        return found.value

    def reopen(self, lost: int | None) -> None:
        """Leaves the world and joins the next one, in the same process: ranks and sizes are others afterwards.

        Process sets all of whose members are in the new world are formed again there; the others have ended.

        Args:
            lost: the rank whose connection has ended, if one has.

        Raises:
            RendezvousError: there is no next world; says why.
            UnsupportedError: the job is not elastic.
            SystemExit: training is complete, rank 0 has done what this rank would have to do again; or this rank's node
                is preempted, and it leaves gracefully.
        """
        from tfcollective._control.client.client import AskedToLeaveError, TrainingOverError

        registered = self.process_sets.registered()
        sets = {number: (one, self._tasks_of(one)) for number, one in registered.items()}
        while True:
            self._go(Phase.BETWEEN)
            self._close_process_sets()
            self._close_communicators()
            try:
                joined = self.engine.rejoin(lost)
                self._enter(joined)
                self._form_again(sets)
                self.change_times.connected(joined.generation, joined.formed)
                break
            except TrainingOverError as error:
                _LOG.warning("%s ends without its last step, which rank 0 has done: %s", self.identity.task, error)
                raise SystemExit(0) from None
            except AskedToLeaveError as error:
                _LOG.warning("%s leaves the job gracefully: %s", self.identity.task, error)
                self.leaving = str(error)
                raise SystemExit(0) from None
            except _OF_A_PEER as error:
                _LOG.warning("the world changes again: %s", error)
                lost = lost_rank(error)
        self._go(Phase.IN_WORLD)
        self._watch_changes()

    def _tasks_of(self, process_set: ProcessSet) -> tuple[TaskKey, ...]:
        return tuple(self._tasks[rank] for rank in process_set.ranks or ())

    def _form_again(self, sets: Mapping[int, tuple[ProcessSet, tuple[TaskKey, ...]]]) -> None:
        """Registers the process sets, by their numbers, whose members, these tasks, are all in the new world."""
        rank_of = {task: rank for rank, task in enumerate(self._tasks)}
        kept = {}
        for number, (process_set, tasks) in sets.items():
            gone = [str(task) for task in tasks if task not in rank_of]
            if gone:
                process_set._ended = f"{', '.join(gone)}, of its members, left the job in generation {self.generation}"
            else:
                kept[number] = (process_set, tuple(sorted(rank_of[task] for task in tasks)))
        self.process_sets.form_again(kept, self.placement.rank, self.placement.size)

    def _enter(self, joined: JoinResult) -> None:
        """Takes over the facts of a new world."""
        self._tasks = joined.tasks
        self._placement, self.homogeneous, self.generation = joined.placement, joined.homogeneous, joined.generation
        self.sealed.enter(joined.generation)
        self.__dict__.pop("members", None)
        new = [] if joined.communicator is None else [joined.communicator]
        with self._lock:
            ended = self._phase is Phase.ENDED
            if not ended:
                self._go(Phase.ENTERING)
                self._communicators = new
        if ended:
            for communicator in new:
                communicator.close(TIMING.leave_broken)
            raise StateError("this process left the job while it waited for the next world")
        global_process_set._register(GLOBAL_SET, self.members.ranks, self.placement.rank)

    @contextmanager
    def solo(self) -> Iterator[None]:
        """Limits collectives to this rank while it is open, as for a newcomer: what a rank does on its own after a
        change of the world must not meet what others do in it."""
        alone = connect_alone(self.settings)
        with self._lock:
            self._communicators.append(alone)
        alone.publish(GLOBAL_SET)
        try:
            yield
        finally:
            with self._lock:
                here = alone in self._communicators
                if here:
                    self._communicators.remove(alone)
                world = self._communicators[-1] if self._communicators else None
            if here and world is not None:
                world.publish(GLOBAL_SET)
            alone.close(TIMING.leave)

    def communicator(self) -> Communicator:
        """The communicator; made now if the world has one rank. Raises StateError for an auxiliary task, and at the
        end."""
        with self._lock:
            if not self._communicators:
                if self._placement is None:
                    raise self._outside()
                if self._phase in (Phase.BETWEEN, Phase.ENDED):
                    raise StateError("this process has left the world")
                self._communicators.append(connect_alone(self.settings))
            return self._communicators[-1]

    def publish(self, info: Mapping[str, object]) -> None:
        """Adds to what the coordinator knows of this task, with a heartbeat at once and with every later one."""
        from tfcollective._control.wire.protocol import write_published

        # A new one: the heartbeat may be reading the old.
        self._published = {**self._published, **write_published(info)}
        if self._trainer is not None:
            self._trainer.report(self._published)
        if self._heartbeat is not None:
            self._heartbeat.hurry()

    def training_ended(self) -> bool:
        """True if rank 0's process has ended, as far as the coordinator can be asked."""
        if self._client is None:
            return False
        from tfcollective._control.store_keys import TRAINING_ENDED

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
            UnsupportedError: the job is elastic.
        """
        if self.settings.elastic:
            raise UnsupportedError("timeline: an elastic job has none: its ranks and their numbers change")
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
        """The ranks of the world. Raises StateError for an auxiliary task."""
        place = self.placement
        return Members(GLOBAL_SET, tuple(range(place.size)), place.rank, self.settings.elastic)

    def members_of(self, process_set: ProcessSet | None) -> Members:
        """The ranks that a collective with this argument is of.

        Raises:
            InvalidArgumentError: it is no registered process set.
        """
        if process_set is None or process_set is global_process_set:
            return self.members
        return self.process_sets.members(process_set)

    def members_of_set(self, process_set_id: int) -> Members:
        """The process set with this number; InvalidArgumentError if there is none."""
        return self.members if process_set_id == GLOBAL_SET else self.process_sets.members_of(process_set_id)

    def communicator_of(self, members: Members) -> Communicator:
        """The members' communicator."""
        found = None if members.process_set_id == GLOBAL_SET else self.process_sets.communicator(members)
        return found or self.communicator()

    def abort(self, cause: str) -> None:
        """Tells all ranks to stop, because of `cause`."""
        for communicator in self._open_communicators():
            communicator.abort(cause)

    def ended_by_peer(self) -> CollectiveError | None:
        """The error with which another rank (lost, late, or one that asked all to stop) ended the world, or None."""
        failures = (communicator.failure() for communicator in self._open_communicators())
        return next((one for one in failures if isinstance(one, _OF_A_PEER)), None)

    def _open_communicators(self) -> list[Communicator]:
        """Returns the open communicators: the world's first, then those of process sets."""
        return [one for one in (*self._communicators, *self.process_sets.communicators()) if not one.closed]

    def _info(self) -> CommunicatorInfo | None:
        """The world's state, with the operations of all communicators; None where there is none, as between worlds."""
        infos = []
        for communicator in self._open_communicators():
            with suppress(StateError):  # another thread has closed it
                infos.append(communicator.info())
        if not infos:
            return None
        return replace(
            infos[0],
            completed=sum(info.completed for info in infos),
            pending=sum(info.pending for info in infos),
        )

    def close(self, *, process_ends: bool = False) -> None:
        """Leaves the world: ends the watching threads, closes the communicators and tells the coordinator."""
        self._go(Phase.ENDED)
        self._crash.remove()
        self.stop_timeline()
        if self._interrupt is not None:
            self._interrupt.stop()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._change is not None:
            self._change.stop()
        if self._trainer is not None:
            self._trainer.close()
        self._close_process_sets()
        self._close_communicators()
        if self._client is not None:
            self._leave(self._client, process_ends=process_ends)

    def forget(self) -> None:
        """Releases nothing in a forked child: it belongs to the parent."""
        if self._interrupt is not None:
            self._interrupt.forget()

    def _close_process_sets(self) -> None:
        broken = any(communicator.info().broken for communicator in self._open_communicators())
        try:
            self.process_sets.close(TIMING.leave_broken if broken else TIMING.leave)
        except TfCollectiveError as error:
            _LOG.warning("leaving the process sets: %s", error)
        global_process_set._forget()
        global_process_set.ranks = None

    def _close_communicators(self) -> None:
        with self._lock:
            # What is held by them, connections and shared memory, does not wait for the end of the session, which
            # others may still refer to.
            communicators, self._communicators = self._communicators, []
        for communicator in reversed(communicators):
            broken = communicator.info().broken
            timeout = TIMING.leave_broken if broken else TIMING.leave
            try:
                if self.placement.size > 1 or self.settings.elastic:
                    communicator.withdraw(GLOBAL_SET)
                communicator.close(timeout)
            except TfCollectiveError as error:
                _LOG.warning("leaving the world: %s", error)

    def _leave(self, client: CoordinatorClient, *, process_ends: bool) -> None:
        from tfcollective._control.messages import Leave

        try:
            client.call(Leave(self.identity.task, bool(self.leaving), self.leaving, process_ends))
        except TfCollectiveError as error:
            _LOG.debug("the coordinator did not hear us leave: %s", error)
        client.close()

    def _report(self) -> tuple[str, Mapping[str, object]]:
        published = self._published
        info = self._info()
        if info is None:
            return "running", published
        state = "broken" if info.broken else "running"
        # In an elastic job the launcher waits for ranks that have come to their world.
        world = {"generation": self.generation} if self.settings.elastic and not self.between_worlds else {}
        return state, {**published, **world, "completed": info.completed, "pending": info.pending}

    def _beat(self, beat: TaskBeat) -> None:
        published = self._published
        beat.give(*self._report(), at_once=published is not self._known)
        self._known = published

    def _coordinator_lost(self, cause: str) -> None:
        _LOG.error("%s", cause)
        self.abort(cause)
