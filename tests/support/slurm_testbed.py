"""A SLURM of one node, which is this machine, under a folder of its own: real munged, slurmctld, slurmd and srun."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from time_limits import within

_PROGRAMS = {"munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm"}
_CONFIG = """
ClusterName=tfcollective
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def missing() -> str | None:
    """Why there can be no SLURM here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "slurmd needs Linux and root"
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is missing: install {package}"
    return None


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """The variables with which ``srun`` reaches it, while it is open."""
    folder.chmod(0o755)  # munged refuses to work in what others may write to
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    port, node_port = _free_ports()
    config.write_text(
        _CONFIG.format(folder=folder, host=socket.gethostname().partition(".")[0], port=port, node_port=node_port)
    )
    names = ("key-file=munge.key", "socket=munge.sock", "pid-file=munged.pid", "seed-file=seed", "log-file=munged.log")
    paths = [f"--{option}={folder / name}" for option, _, name in (text.partition("=") for text in names)]
    commands = (
        ["munged", "--foreground", "--force", *paths],
        ["slurmctld", "-D", "-f", str(config)],
        ["slurmd", "-D", "-f", str(config)],
    )
    environ = {"SLURM_CONF": str(config)}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            log = (folder / f"{command[0]}.out").open("wb")
            with log:
                running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        _wait_until_it_works(folder, environ)
        yield environ
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(within(20))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def _wait_until_it_works(folder: Path, environ: dict[str, str]) -> None:
    deadline = time.monotonic() + within(60)
    while True:
        asked = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env={**os.environ, **environ}, capture_output=True, text=True, check=False
        )
        if asked.stdout.strip() == "idle":
            return
        logs = {path.name: path.read_text(errors="replace")[-2000:] for path in folder.glob("*.out")}
        assert time.monotonic() < deadline, f"SLURM does not come up: {asked.stdout} {asked.stderr} {logs}"
        time.sleep(0.2)
