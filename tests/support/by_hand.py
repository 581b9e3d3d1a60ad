"""Ranks started by hand, as by a platform that only sets variables."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tfcollective._base.machine.network import held_ports
from tfcollective._control.client.client import CoordinatorClient
from tfcollective._control.messages import Status
from tfcollective._control.records import running_jobs
from tfcollective._control.snapshot import JobSnapshot

# What a rank does: all-reduces rank + 1 twice, with a world each, and says what it saw as JSON.
TRAIN = """
import json, os, numpy, tfcollective
seen = []
for _ in range(2):
    tfcollective.init()
    total = tfcollective.get_communicator().allreduce(numpy.array([tfcollective.rank() + 1.0]), op=tfcollective.Sum)
    seen.append(float(total[0]))
    about = [str(tfcollective.task()), tfcollective.rank(), tfcollective.size(), "TF_CONFIG" in os.environ]
    tfcollective.shutdown()
print(json.dumps([*about, seen]))
"""


def free_port() -> int:
    """A port that is free now, and outside the range from which Linux assigns ports."""
    with held_ports(1) as (port,):
        return port


def tf_config(port: int, kind: str, index: int, host: str = "127.0.0.1") -> dict[str, str]:
    """A chief and two workers."""
    cluster = {"chief": [f"{host}:{port}"], "worker": ["127.0.0.2:9", "127.0.0.1:9"]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


class Ranks:
    """Processes with a private directory for records and keys of their own."""

    def __init__(self, folder: Path) -> None:
        self.jobs = folder / "jobs"
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, program: str, variables: dict[str, str], *, timeout: float = 60.0) -> subprocess.Popen[str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("TFCOLLECTIVE_", "TF_CONFIG"))}
        settings = {"TFCOLLECTIVE_RUNTIME_DIR": str(self.jobs), "TFCOLLECTIVE_START_TIMEOUT": str(timeout)}
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**own, **settings, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def status(self) -> JobSnapshot:
        """What the one coordinator says of its job."""
        (record,) = running_jobs(self.jobs)
        with CoordinatorClient(record.coordinator, record.key) as client:
            return client.call(Status())

    def coordinators(self) -> list[psutil.Process]:
        """The coordinators that run."""
        found = []
        for record in running_jobs(self.jobs):
            with suppress(psutil.Error):
                found.append(psutil.Process(record.pid))
        return found


@contextmanager
def ranks(folder: Path) -> Iterator[Ranks]:
    """Leaves no process."""
    group = Ranks(folder)
    try:
        yield group
    finally:
        for process in group.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        for coordinator in group.coordinators():
            coordinator.kill()
