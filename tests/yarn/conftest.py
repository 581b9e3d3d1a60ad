"""A real YARN, brought up by `make test-yarn`; every test leaves it empty."""

import getpass
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from elastic_jobs import Training, disturbing
from yarn_jobs import AGENT

ALIVE = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Yarn:
    """The cluster as the tests see it, from outside."""

    web: str
    file_system: str
    file_system_web: str

    def over_http(self, url):
        """The same place on HDFS, for WebHDFS."""
        return url.replace(self.file_system, f"webhdfs://{getpass.getuser()}@{self.file_system_web}")

    def apps(self, states=ALIVE):
        """The applications in these states."""
        with _OPENER.open(f"http://{self.web}/ws/v1/cluster/apps?states={states}", timeout=10) as reply:
            return (json.load(reply)["apps"] or {}).get("app", [])

    def app(self, app_id):
        with _OPENER.open(f"http://{self.web}/ws/v1/cluster/apps/{app_id}", timeout=10) as reply:
            return json.load(reply)["app"]

    def nodes(self):
        """Those that run, as YARN knows."""
        with _OPENER.open(f"http://{self.web}/ws/v1/cluster/nodes?states=RUNNING", timeout=10) as reply:
            return (json.load(reply)["nodes"] or {}).get("node", [])

    def latest(self):
        """The application that was submitted last, which has finished: YARN lists them in any order."""
        return max(self.apps("FINISHED"), key=lambda app: app["startedTime"])

    def only_app(self):
        """The one application that runs now."""
        return self.until(lambda: self.apps("RUNNING"), "an application runs")[0]["id"]

    def processes(self, app_id="application_", *words):
        """The processes in the containers of an application whose command lines hold all these words."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                folder = str((entry / "cwd").readlink()) if entry.name.isdigit() else ""
                # Another cluster may run on this machine.
                if folder.startswith(os.environ["HADOOP_HOME"]) and f"/appcache/{app_id}" in folder:
                    command = (entry / "cmdline").read_bytes().split(b"\0")
                    if all(any(word.encode() in one for one in command) for word in words):
                        yield int(entry.name)

    def process(self, app_id, *words):
        """The pid of one that is there soon."""
        return self.until(lambda: list(self.processes(app_id, *words)), f"a process with {words}")[0]

    @staticmethod
    def until(condition, what, seconds=120.0):
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
            time.sleep(0.1)
        return value


def _property(file, name):
    rows = ElementTree.parse(Path(os.environ["HADOOP_CONF_DIR"]) / file).getroot().findall("property")
    return {row.findtext("name"): row.findtext("value") for row in rows}[name]


@pytest.fixture(scope="session")
def cluster():
    if shutil.which("yarn") is None or "HADOOP_CONF_DIR" not in os.environ:
        pytest.fail("there is no cluster: run `make test-yarn`")
    web = _property("yarn-site.xml", "yarn.resourcemanager.webapp.address")
    hdfs = _property("core-site.xml", "fs.defaultFS")
    return Yarn(web, hdfs, _property("hdfs-site.xml", "dfs.namenode.http-address"))


@pytest.fixture
def yarn(cluster):
    """The cluster, which is empty before and afterwards."""
    cluster.until(lambda: not cluster.apps(), "the cluster is empty")
    yield cluster
    cluster.until(lambda: not cluster.apps(), "no application is left")
    cluster.until(lambda: not list(cluster.processes()), "no process is left")


@pytest.fixture
def hadoop_state():
    """The directory of the cluster that tools/hadoop has started."""
    return os.environ["HADOOP_HOME"]


@pytest.fixture
def on_yarn(tmp_path):
    """Options of a job: the containers use this interpreter."""
    path = os.environ.get("PYTHONPATH")  # of a source tree; an installed package needs none
    env = {"TFC_TEST_FOLDER": str(tmp_path), **({"PYTHONPATH": path} if path else {})}

    def options(env_more=None, **platform):
        return {
            "launcher": "yarn",
            "env": {**env, **(env_more or {})},
            "platform": {"python": sys.executable, "allocation_timeout": 240.0, **platform},
        }

    return options


@pytest.fixture
def when_all_run(yarn, tmp_path):
    """Calls a function with the application's id on a thread, once so many ranks are in the world."""

    def start(act, count=2):
        def watch():
            yarn.until(lambda: len(list(tmp_path.glob("here-*"))) == count, "all ranks run", 300)
            act(yarn.only_app())

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        return thread

    return start


class OnYarn(Training):
    """And as YARN does."""

    def __init__(self, yarn, folder):
        super().__init__(folder)
        self._yarn = yarn

    @property
    def app_id(self):
        return self._yarn.only_app()

    def agent(self, name):
        return self._yarn.process(self.app_id, AGENT, name)


@pytest.fixture
def training(yarn, tmp_path):
    return OnYarn(yarn, tmp_path)


@pytest.fixture
def disturb(training):
    """Runs a function beside a job, and ends the training afterwards; its error is the test's."""
    with disturbing(training) as start:
        yield start


@pytest.fixture
def hdfs(cluster, tmp_path):
    """A directory of the test on HDFS, as a URL, and HDFS's command line."""

    class Hdfs:
        url = f"{cluster.file_system}/{tmp_path.name}"

        def __call__(self, *words):
            subprocess.run(["hdfs", *words], check=True, capture_output=True, timeout=300)

    hdfs = Hdfs()
    hdfs("dfs", "-mkdir", "-p", hdfs.url)
    yield hdfs
    hdfs("dfs", "-rm", "-r", "-skipTrash", hdfs.url)
