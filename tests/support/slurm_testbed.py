"""A SLURM of several nodes, all on this machine, under a folder of its own: real munged, slurmctld and slurmd."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
from time_limits import within

_PROGRAMS = {"munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm"}
NODES = ("node1", "node2", "node3")
GPUS = 2
_CPUS = 8
_MEMORY = 1000  # MiB of each core
_CONFIG = """
ClusterName=tfcollective
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=10
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={memory}
GresTypes=gpu
SlurmdParameters=config_overrides
Prolog={folder}/prolog
SlurmdTimeout=15
KillWait=10
ReturnToService=2
JobRequeue=1
NodeName={nodes}
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=NO
"""
# What SLURM runs on a node before the first step of a job there.
_PROLOG = """#!/bin/sh
while [ -e {folder}/held-$SLURMD_NODENAME ]; do sleep 0.2; done
"""


def missing() -> str | None:
    """Why there can be no SLURM here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "slurmd needs Linux and root"
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is missing: install {package}"
    return None


class Slurm:
    """The cluster while it runs.

    Args:
        folder: where it keeps its files.
        addresses: of the nodes.

    Attributes:
        environ: the variables with which SLURM's commands reach it.
    """

    def __init__(self, folder: Path, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._folder = folder
        self._config = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environ = {"SLURM_CONF": str(self._config)}

    def up(self) -> None:
        """Starts everything, and waits until all nodes are idle."""
        folder = self._folder
        folder.chmod(0o755)  # munged refuses to work in what others may write to
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        port, *ports = _free_ports(1 + len(NODES))
        nodes = "\nNodeName=".join(
            f"{name} NodeHostname={host} NodeAddr={address} Port={one} CPUs={_CPUS} "
            f"RealMemory={_CPUS * _MEMORY} Gres=gpu:{GPUS} State=UNKNOWN"
            for name, address, one in zip(NODES, self.addresses, ports, strict=True)
        )
        self._config.write_text(_CONFIG.format(folder=folder, host=host, port=port, nodes=nodes, memory=_MEMORY))
        for number in range(GPUS):
            os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # as /dev/null
        (folder / "gres.conf").write_text(f"NodeName={','.join(NODES)} Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
        names = ("key-file=munge.key", "socket=munge.sock", "pid-file=munged.pid", "seed-file=seed")
        paths = [f"--{option}={folder / name}" for option, _, name in (text.partition("=") for text in names)]
        prolog = folder / "prolog"
        prolog.write_text(_PROLOG.format(folder=folder))
        prolog.chmod(0o755)
        self._start("munged", "munged", "--foreground", "--force", f"--log-file={folder}/munged.log", *paths)
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self._config))
        for name in NODES:
            self.start_node(name)
        self.wait_until_idle()

    def down(self) -> None:
        """Ends what :meth:`up` has started, with all jobs."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--user=root", check=False)
            self._wait("no job is left", lambda: not self.run("squeue", "-h").stdout.strip())
        for name in reversed(self._daemons):
            self._daemons[name].terminate()
        for process in self._daemons.values():
            try:
                process.wait(within(20))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start_node(self, name: str) -> None:
        """Starts the slurmd of a node."""
        self._start(name, "slurmd", "-D", "-N", name, "-f", str(self._config))

    def lose_node(self, name: str) -> None:
        """Kills a node's slurmd and all that runs there, as when the machine loses its power."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()
        tasks = [one for one in psutil.process_iter() if _variable(one, "SLURMD_NODENAME") == name]
        for task in tasks:
            with contextlib.suppress(psutil.Error):
                parent = task.parent()
                if parent is not None and parent.name().startswith("slurmstepd"):
                    parent.kill()
                task.kill()

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """While it is open, no job's first step begins on a node: its prolog takes long."""
        mark = self._folder / f"held-{name}"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()

    def run(self, *words: str, check: bool = True, **environ: str) -> subprocess.CompletedProcess[str]:
        """What a command says that is run on this cluster."""
        return subprocess.run(
            words,
            env={**os.environ, **self.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within(120),
            check=check,
        )

    def states(self) -> dict[str, str]:
        """The nodes' states, in SLURM's long words."""
        lines = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).stdout.splitlines()
        return dict(line.split() for line in lines)

    def wait_until_idle(self) -> None:
        """Until every node is free and no job is left."""
        self._wait("all nodes are idle", lambda: list(self.states().values()) == ["idle"] * len(NODES))

    @contextlib.contextmanager
    def allocation(self, *tasks: int, options: tuple[str, ...] = ()) -> Iterator[dict[str, str]]:
        """The variables of an allocation with so many tasks on each of as many nodes, as salloc sets them."""
        nodes = f"-N{len(tasks)}", f"--ntasks={sum(tasks)}", f"--cpus-per-task={_CPUS // max(tasks)}"
        said = self.run("salloc", "--no-shell", *nodes, *options).stderr
        job_id = said.split("Granted job allocation ")[1].split()[0]
        names = self.run("squeue", "-h", "-j", job_id, "-o", "%N").stdout.strip()
        try:
            yield {
                **self.environ,
                "SLURM_JOB_ID": job_id,
                "SLURM_JOB_NODELIST": names,
                "SLURM_TASKS_PER_NODE": ",".join(map(str, tasks)),
                "SLURM_CPUS_PER_TASK": "1",  # as sbatch -c 1 sets it: srun is not to bind the agent to one core
            }
        finally:
            self.run("scancel", job_id, check=False)
            self.wait_for_end(job_id)

    def job(self, job_id: str) -> dict[str, str]:
        """The fields of a job that have no spaces."""
        text = self.run("scontrol", "show", "job", job_id, "--oneliner").stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def newest(self) -> str:
        """The number of the job that was submitted last, once there is one."""
        found: list[str] = []

        def look() -> bool:
            found[:] = self.run("squeue", "-h", "-o", "%i", "--sort=-i").stdout.split()[:1]
            return bool(found)

        self._wait("a job is in the queue", look)
        return found[0]

    def wait_for_end(self, job_id: str) -> None:
        """Until a job is over."""
        self._wait(f"job {job_id} has ended", lambda: job_id not in self.run("squeue", "-h", "-o", "%A").stdout.split())

    def wait_for_state(self, job_id: str, state: str) -> None:
        """Until a job is in this state."""
        self._wait(f"job {job_id} is {state}", lambda: self.job(job_id)["JobState"] == state)

    def _start(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _wait(self, what: str, happens: Callable[[], bool]) -> None:
        deadline = time.monotonic() + within(120)
        while not happens():
            logs = {path.name: path.read_text(errors="replace")[-2000:] for path in self._folder.glob("*.out")}
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            assert not ended, f"{ended} have ended: {logs}"
            assert time.monotonic() < deadline, f"not: {what}: {self.states()} {logs}"
            time.sleep(0.2)


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


@contextlib.contextmanager
def slurm(folder: Path, addresses: Sequence[str] = ("127.0.0.1",) * len(NODES)) -> Iterator[Slurm]:
    """A cluster, while it is open."""
    made = Slurm(folder, addresses)
    try:
        made.up()
        yield made
    finally:
        made.down()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        return [held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


__all__ = ["GPUS", "NODES", "Slurm", "missing", "slurm"]
