"""Starts a command by hand on several "hosts": a chief and two workers, each with a TF_CONFIG of its own.

    python hosts.py [--workers N] [--port PORT] COMMAND...

The hosts are 127.0.0.1, 127.0.0.2 and so on, all of them this machine. On real hosts use the same variables and a job
key (docs/howto/tf_config.md). Each start has its own name (TFCOLLECTIVE_JOB_ID): if two use the same port, the second
fails and the first continues.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="how many workers, besides the chief")
    parser.add_argument("--port", type=int, default=2222, help="the chief's port, where the ranks meet")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if not arguments.command:
        parser.error("which command? for example: python train.py")
    if shutil.which(arguments.command[0]) is None:
        parser.error(f"there is no command {arguments.command[0]}")

    chief = f"127.0.0.1:{arguments.port}"
    workers = [f"127.0.0.{2 + index}:{arguments.port}" for index in range(arguments.workers)]
    cluster = {"chief": [chief], "worker": workers}
    tasks = [("chief", 0), *(("worker", index) for index in range(arguments.workers))]
    processes = [start(arguments.command, cluster, *task) for task in tasks]
    return wait(processes)


def start(command: list[str], cluster: dict[str, list[str]], kind: str, index: int) -> subprocess.Popen[bytes]:
    config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    program = [sys.executable, *command[1:]] if command[0] == "python" else command
    name = {"TFCOLLECTIVE_JOB_ID": f"hosts-{os.getpid()}"}  # the same for all ranks of this start
    return subprocess.Popen(program, env={**name, **os.environ, "TF_CONFIG": config})


def wait(processes: list[subprocess.Popen[bytes]]) -> int:
    """Waits for all processes; returns 0, or the first other exit code, after which it ends the others."""
    failed = 0
    try:
        while not failed and any(process.poll() is None for process in processes):
            failed = next((process.returncode for process in processes if process.returncode), 0)
            time.sleep(0.1)  # subprocess cannot wait for several at once
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    return failed or next((process.returncode for process in processes if process.returncode), 0)


if __name__ == "__main__":
    sys.exit(main())
