"""What a launcher knows of a job whose coordinator is another process."""

import asyncio

import pytest
from manual_clock import ManualClock

from tfcollective._base.codec import decode, encode
from tfcollective._base.failures import ExceptionRecord, ExitRecord
from tfcollective._base.tasks import TaskKey, workers
from tfcollective._control.serve.job_copy import JobCopy
from tfcollective._control.serve.journal import Journal
from tfcollective._control.serve.service import JobService
from tfcollective._control.state.membership import Membership, TaskState, WorldChange
from tfcollective._control.state.rounds import Bounds, JoinRequest
from tfcollective._control.state.store import Store
from tfcollective._control.wire import messages
from tfcollective._control.wire.protocol import ServerOptions

SIDE = TaskKey("tensorboard", 0)
BOUNDS = Bounds(1, 3, 4, 30.0)
OPTIONS = ServerOptions("job", b"k", workers(3), 60.0, auxiliary_tasks=(SIDE,), bounds=BOUNDS)


def task(index):
    return TaskKey("worker", index)


def ended(index, code=0, traceback=""):
    exception = ExceptionRecord("ValueError", "bad", traceback, 1.0, consequence=False) if traceback else None
    return ExitRecord(f"worker:{index}", index, "node", 100 + index, code, None, 1.0, exception=exception)


class Job:
    """A coordinator's half, and the copy that follows it."""

    def __init__(self, path, size=3):
        self.path, self.clock, self.tasks = path, ManualClock(50.0), workers(size)
        self.journal = Journal.create(path)
        self.service, self.copy, self.position, self.pages = None, None, 0, 0
        self.copy = JobCopy(ServerOptions("job", b"k", self.tasks, 60.0, auxiliary_tasks=(SIDE,), bounds=BOUNDS))
        self.serve(0)

    def serve(self, life):
        membership = Membership(self.tasks, 60.0, (SIDE,), bounds=BOUNDS)
        self.service = JobService("job", membership, Store(1 << 20), self.clock, journal=self.journal, life=life)

    def die(self, life):
        self.journal.close()
        self.journal = Journal.reopen(self.path)
        self.serve(life)

    async def ask(self, request, kind=messages.Nothing):
        answer = await self.service.answer(messages.path_of(type(request)), encode(request))
        return decode(answer, kind, "the answer")

    async def follow(self):
        events = []
        while True:
            self.pages += 1
            news = await self.ask(self.copy.request(self.position, 0.0), messages.JobNews)
            self.copy.take(news)
            self.position += len(news.events)
            events += news.events
            if not news.more:
                return events


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / "journal")


async def begin(job):
    for index in range(3):
        await job.ask(messages.Started(task(index), "node", 100 + index))
        request = JoinRequest(task(index), 3, "node", 100 + index, "a")
        await job.ask(messages.Join(request, 0.0), messages.Joined)


def test_the_copy_is_what_the_coordinator_sees(job):
    async def story():
        assert job.copy.view() == job.service.view()
        await begin(job)
        await job.follow()
        assert job.copy.view() == job.service.view()
        assert job.copy.view().members == workers(3)
        await job.ask(messages.Admit(task(3)))
        await job.ask(messages.Admit(task(3)))  # the answer was lost
        await job.ask(messages.Beat(task(0), "running", {"step": 4}))
        await job.ask(messages.Exited(ended(1, 9)))
        await job.ask(messages.Leave(task(2), True, "SIGTERM"))
        events = await job.follow()
        assert [one.exited.task for one in events] == ["worker:1"]
        assert job.copy.view() == job.service.view()
        assert job.copy.view() is job.copy.view()

    asyncio.run(story())


def test_nothing_is_sent_again_that_has_not_changed(job):
    async def story():
        await begin(job)
        await job.follow()
        news = await job.ask(job.copy.request(0, 0.0), messages.JobNews)
        assert (news.tasks, news.facts, news.events, news.more) == ((), None, (), False)
        await job.ask(messages.Beat(task(1), "running", {"step": 4}))
        news = await job.ask(job.copy.request(0, 0.0), messages.JobNews)
        assert ([view.task for view in news.tasks], news.facts) == ([task(1)], None)

    asyncio.run(story())


def test_each_event_comes_once_whatever_dies_between(job):
    async def story():
        await begin(job)
        await job.ask(messages.Exited(ended(1, 9)))
        assert len(await job.follow()) == 1
        await job.ask(messages.Exited(ended(2, 9)))
        job.die(1)
        await job.ask(messages.Exited(ended(2, 9)))  # its agent has had no answer
        assert [one.exited.task for one in await job.follow()] == ["worker:2"]
        assert job.copy.view() == job.service.view()
        job.die(2)
        assert await job.follow() == []
        assert job.copy.view() == job.service.view()
        assert [view.state for view in job.copy.view().tasks] == [
            *(TaskState.RUNNING, TaskState.FAILED, TaskState.FAILED)
        ]

    asyncio.run(story())


def test_an_old_answer_changes_nothing(job):
    async def story():
        await begin(job)
        first = await job.ask(job.copy.request(0, 0.0), messages.JobNews)
        await job.ask(messages.Exited(ended(1, 9)))
        await job.follow()
        job.copy.take(first)
        assert job.copy.view() == job.service.view()
        job.die(1)
        second = await job.ask(job.copy.request(0, 0.0), messages.JobNews)
        job.copy.take(second)
        job.copy.take(first)
        assert job.copy.view() == job.service.view()

    asyncio.run(story())


def test_long_news_come_in_several_answers(tmp_path):
    job = Job(tmp_path / "journal", size=100)

    async def story():
        for index in range(100):
            await job.ask(messages.Exited(ended(index, 1, "x" * 50_000)))
        events = await job.follow()
        assert [one.exited.rank for one in events if one.exited] == list(range(100))
        assert job.pages > 4
        assert job.copy.view() == job.service.view()

    asyncio.run(story())


def world_change(generation, lost=100):
    cause = ", ".join(f"worker:{index} was killed by SIGKILL" for index in range(lost))
    return WorldChange(generation, 900, tuple(map(task, range(lost))), (task(generation),), 0.1, cause)


def test_how_worlds_came_about_is_said_once_however_often_they_change(job):
    """All of them would be more than an answer may hold, some day, and each answer would be late long before that."""

    async def story():
        await begin(job)
        job.service._membership._changes += [world_change(generation) for generation in range(2, 500)]
        await job.follow()
        assert job.pages > 2
        assert job.copy.view() == job.service.view()
        job.service._membership._changes.append(world_change(500))
        await job.ask(messages.Admit(task(3)))
        job.service._membership._after[7] = {"connect": 2.0}  # the slowest rank says so only now
        news = await job.ask(job.copy.request(0, 0.0), messages.JobNews)
        assert [one.generation for one in news.worlds] == [7, 500]
        assert not news.more
        job.copy.take(news)
        assert job.copy.view() == job.service.view()

    asyncio.run(story())


def test_a_change_ends_the_wait_for_news(job):
    async def story():
        await job.follow()
        waiting = asyncio.create_task(job.ask(job.copy.request(0, 30.0), messages.JobNews))
        await asyncio.sleep(0)
        await job.ask(messages.Started(task(0), "node", 100))
        news = await asyncio.wait_for(waiting, 60.0)
        assert [view.task for view in news.tasks] == [task(0)]

    asyncio.run(story())
