"""A Spark standalone cluster on the loopback of this machine, from pip's pyspark: a master and workers with a directory
each, all in one folder."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from time_limits import within

HOST = "127.0.0.1"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
#: Of every application in the tests: small, and all on the loopback.
CONF = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@dataclass
class SparkCluster:
    """The cluster from outside."""

    folder: Path
    url: str
    page: str
    daemons: list[subprocess.Popen] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    workers: int = 0

    def start(self, name, kind, *arguments):
        """Starts a daemon; its log is in the folder."""
        command = [str(_spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.daemons.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environ)
            )

    def add_workers(self, count, cores):
        """Brings up further workers, and waits until the master has them."""
        for _ in range(count):
            place = ("--work-dir", str(self.folder / f"work{self.workers}"), "--webui-port", "0")
            size = ("--cores", str(cores), "--memory", "2g")
            self.start(f"worker{self.workers}", "worker.Worker", self.url, "--host", HOST, *size, *place)
            self.workers += 1
        _until(lambda: self.state()["aliveworkers"] == self.workers, self.folder / "master.log")

    def state(self):
        """What the master's page says."""
        with _OPENER.open(f"{self.page}/json/", timeout=10) as reply:
            return json.load(reply)

    def executors(self):
        """The JVMs of executors that run."""
        pids = {one.pid for one in self.daemons}
        return [
            one
            for pid in pids
            if psutil.pid_exists(pid)
            for one in psutil.Process(pid).children()
            if one.status() != psutil.STATUS_ZOMBIE
        ]

    def logs(self, application="app-*"):
        """All that executors have written, for messages."""
        return "\n".join(path.read_text(errors="replace") for path in self.folder.glob(f"work*/{application}/*/std*"))


def _spark_home():
    return Path(importlib.util.find_spec("pyspark").submodule_search_locations[0])


@contextlib.contextmanager
def spark_cluster(folder: Path, workers=2, cores=2, gpu_script=None) -> Iterator[SparkCluster]:
    """A master and so many workers of so many cores, while it is open. ``gpu_script`` prints the GPUs of each."""
    home = _spark_home()
    environ = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    if gpu_script is not None:
        resource = "-Dspark.worker.resource.gpu"
        environ["SPARK_WORKER_OPTS"] = f"{resource}.amount=2 {resource}.discoveryScript={gpu_script}"
    cluster = SparkCluster(folder, "", "", environ=environ)
    try:
        cluster.start("master", "master.Master", "--host", HOST, "--port", "0", "--webui-port", "0")
        log = folder / "master.log"
        cluster.url = _until(lambda: _said(log, r"Starting Spark master at (spark://\S+)"), log)
        port = _until(lambda: _said(log, r"MasterWebUI.* started at http://\S+:(\d+)"), log)
        cluster.page = f"http://{HOST}:{port}"
        cluster.add_workers(workers, cores)
        yield cluster
    finally:
        for daemon in reversed(cluster.daemons):
            daemon.terminate()
        for daemon in cluster.daemons:
            try:
                daemon.wait(within(20))
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _said(log, pattern):
    found = re.search(pattern, log.read_text(errors="replace"))
    return found and found.group(1)


def _until(look, log, seconds=120):
    deadline = time.monotonic() + within(seconds)
    while not (found := look()):
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)
    return found


def ancestors(pid):
    """This process and those above it, up to the executor's JVM: rank, agent, Python worker, daemon, JVM."""
    found = [psutil.Process(pid)]
    while not found[-1].name().startswith("java") and found[-1].ppid() > 1:
        found.append(psutil.Process(found[-1].ppid()))
    return found


def main():
    """``python spark_testbed.py FOLDER``: a cluster to try things on, until Enter or the end of stdin."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with spark_cluster(folder) as cluster:
        print(cluster.url, cluster.page, flush=True)
        sys.stdin.read(1)


if __name__ == "__main__":
    main()
