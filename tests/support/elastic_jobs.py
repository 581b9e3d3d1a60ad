"""An elastic job that tests disturb while it trains: what its ranks run on any platform, and what its files show.

The files are in a directory that all can reach: ``TFC_TEST_FOLDER``.
"""

import contextlib
import json
import os
import threading
import time
from pathlib import Path

from launching import until

LONG_S = 300.0


def sum_of(value):
    """The sum of a number over all ranks."""
    import numpy

    from tfcollective._runtime import get_communicator
    from tfcollective._runtime.communicator import Sum

    return float(get_communicator().allreduce(numpy.full(3, value, numpy.float32), op=Sum)[0])


def train_on(steps=20, *, backup=False):
    """Commits step after step until a file called `finish` is there, and says of each world where its ranks are. The
    sum of the sizes of its steps, which is the same on all ranks. With a backup rank 0 writes down each step, and all
    ranks begin with the one that was written last."""
    import tfcollective
    from tfcollective import elastic

    tfcollective.init()
    folder = Path(os.environ["TFC_TEST_FOLDER"])
    deadline = time.monotonic() + LONG_S

    @elastic.run
    def train(state):
        mine = {"task": str(tfcollective.task()), "pid": os.getpid()}
        mine["container"], mine["node"] = os.environ.get("CONTAINER_ID"), os.environ.get("NM_HOST")  # of YARN
        world = tfcollective.size()
        (folder / f"in-{world}-{mine['task']}").write_text(json.dumps(mine))
        while not state.finish:
            assert time.monotonic() < deadline, "nothing has ended the training"
            added = sum_of(1.0)
            state.finish = sum_of(float((folder / "finish").exists())) > 0 and state.step >= steps
            state.total += added
            state.step += 1
            if tfcollective.rank() == 0:
                partial = folder / f"partial-{mine['task']}"
                partial.write_text(f"{state.step} {world}")
                partial.rename(folder / "progress")
                if backup:
                    partial.write_text(json.dumps([state.step, state.total]))
                    partial.rename(folder / "backup")
            time.sleep(0.05)
            state.commit()
        return state.total

    step, total, saved = 0, 0.0, folder / "backup"
    if backup and saved.exists():
        step, total = json.loads(saved.read_text())
        with (folder / "began").open("a") as file:
            file.write(f"{step} {os.environ['TFCOLLECTIVE_RESTARTS']}\n")
    return train(elastic.ObjectState(step=step, total=total, finish=False))


class Training:
    """One job while it trains, as its files show it."""

    def __init__(self, folder):
        self._folder = folder
        self.over = False

    def ranks(self, size):
        """What the ranks of the newest world of this size have written, by task, once there are so many."""

        def look():
            files = sorted(self._folder.glob(f"in-{size}-*"), key=lambda one: one.stat().st_mtime_ns)
            known = [json.loads(text) for text in (one.read_text() for one in files) if text]
            alive = {one["task"]: one for one in known if os.path.exists(f"/proc/{one['pid']}")}
            return alive if len(alive) == size else None

        return self._until(look, f"{size} ranks train")

    def trains_with(self, size, after=0):
        """Waits for a step of a world of this size, later than step `after`; which one that is."""

        def look():
            path = self._folder / "progress"
            step, world = map(int, path.read_text().split()) if path.exists() else (0, 0)
            return step if world == size and step > after else None

        return self._until(look, f"a step of {size} ranks")

    def _until(self, look, what):
        found = []

        def there():
            found[:] = [look()]
            return found[0] or self.over

        until(there, LONG_S, lambda: f"not within {LONG_S:g} s: {what}")
        assert not self.over, f"the job is over: not {what}"
        return found[0]

    def finish(self):
        """Lets the ranks return."""
        (self._folder / "finish").touch()


@contextlib.contextmanager
def disturbing(training):
    """What runs a function of the training beside the job, and ends the training afterwards; its error is raised at the
    end."""
    threads, errors = [], []

    def start(act):
        def run():
            try:
                act(training)
            except BaseException as error:
                errors.append(error)
            training.finish()

        threads.append(threading.Thread(target=run, daemon=True))
        threads[0].start()

    yield start
    training.over = True
    for thread in threads:
        thread.join(2 * LONG_S)
    assert not errors, errors
