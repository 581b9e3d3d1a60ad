"""A job whose hosts come and go, as its discovery script says, and what its ranks say of their worlds."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

from launching import Run, environment_of, until

WORKER = Path(__file__).parents[1] / "multiprocess" / "growing_worker.py"


class Growing:
    """One job in a directory; ``run`` starts it, with the arguments of ``tfcollective run``."""

    def __init__(self, directory, run=Run):
        self.directory = directory
        self.script = directory / "hosts.sh"
        self.script.write_text(f"#!/bin/sh\nexec cat {directory}/hosts\n")
        self.script.chmod(0o755)
        self.run = run
        self.job = None

    def has(self, *hosts):
        """The hosts are these from now on."""
        (self.directory / "new").write_text("".join(f"{host}\n" for host in hosts))
        (self.directory / "new").replace(self.directory / "hosts")

    @property
    def discovers(self):
        """The option that makes its script say which hosts there are."""
        return ("--host-discovery-script", str(self.script))

    @contextmanager
    def runs(self, *options, **more):
        """Starts it; ends it in any case. ``more`` is for the run."""
        with self.run((*options, "--", sys.executable, str(WORKER), str(self.directory)), **more) as self.job:
            yield self.job

    @property
    def worlds(self):
        """The tasks of each world, in the order of their ranks."""
        path = self.directory / "worlds"
        lines = path.read_text().splitlines() if path.exists() else []
        return [[int(task) for task in line.split()] for line in lines]

    def comes_to(self, size):
        """Waits for a world of this size."""
        until(lambda: self.worlds and len(self.worlds[-1]) == size, 90, lambda: f"{self.worlds}")

    def comes_to_be(self, *tasks):
        """Waits for the world of these tasks, in whatever order those that are new have come."""
        until(lambda: self.worlds and sorted(self.worlds[-1]) == sorted(tasks), 90, lambda: f"{self.worlds}")

    def agent_of(self, task):
        """The process that has started the rank of this worker."""
        named = f"worker:{task}"
        (rank,) = (one for one in self.job.processes() if environment_of(one).get("TFCOLLECTIVE_TASK") == named)
        return rank.parent()

    def ends(self):
        """Ends the training; what the launcher says, and the ranks."""
        (self.directory / "finish").touch()
        code, _, err = self.job.finish(90)
        assert code == 0, err
        self.job.wait_until_gone(10.0)
        return err, {int(one.name[4:]): json.loads(one.read_text()) for one in self.directory.glob("end-*")}
