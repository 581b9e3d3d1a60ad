"""Starts and ends a real Hadoop on this machine; see the script ``hadoop`` beside this file. Standard library only.

Everything that it writes is below one state directory, which ``down`` removes. The jars are beside it and stay.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import configuration
import kerberos
from configuration import LABEL, NODES, SPARE, Layout

HERE = Path(__file__).resolve().parent
VERSION = "3.4.3"
HEAP = "256m"
# Below the range from which Linux gives out ports by itself.
PORT_BASES = range(28000, 32000, 200)
START_S = 600.0
END_S = 20.0
MARK = "-Dtfcollective.hadoop="
PACKAGE = "org.apache.hadoop"
# The ResourceManager defines classes through reflection, which Java 17 forbids unless an option allows it.
OPENED = ("java.lang", "java.util", "java.io", "java.net", "java.nio", "java.util.concurrent", "sun.nio.ch")


class ClusterError(Exception):
    """What to tell the user."""


@dataclass(frozen=True)
class Daemon:
    """One JVM of the cluster: its name, its class, its configuration and where it listens once it is ready."""

    name: str
    java_class: str
    conf: Path
    address: str


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="hadoop", description="A real Hadoop on this machine, on loopback only.")
    parser.add_argument("command", choices=("up", "down", "status", "env", "restart", "stop", "lose"))
    parser.add_argument("daemon", nargs="?", help="which one, by its name in `hadoop status`")
    parser.add_argument("--state", type=Path, default=HERE.parents[1] / "build/hadoop/state", help="its directory")
    parser.add_argument("--version", default=VERSION, help=f"which Hadoop [{VERSION}]")
    parser.add_argument("--kerberos", action="store_true", help="with a KDC, which all have to prove themselves to")
    options = parser.parse_args()
    state = options.state.resolve()
    try:
        if options.command == "up":
            _up(state, options.version, secure=options.kerberos)
        elif options.command == "down":
            _down(state)
        elif options.command == "restart":
            _restart(state, options.daemon)
        elif options.command in ("stop", "lose"):
            _stop(state, options.daemon, crash=options.command == "lose")
        elif options.command == "status":
            _status(state)
        else:
            sys.stdout.write(_exports(_read_layout(state)))
    except ClusterError as error:
        sys.stderr.write(f"hadoop: {error}\n")
        return 1
    return 0


# ---- up --------------------------------------------------------------------------------------------------------------


def _up(state: Path, version: str, *, secure: bool) -> None:
    """Starts everything and waits until applications can be submitted; ends what it has started if that fails."""
    begun = time.monotonic()
    if (state / "layout.json").exists():
        raise ClusterError(f"{state} is in use already: see `hadoop status`, end it with `hadoop down`")
    jars = _resolve_jars(state.parent / f"jars-{version}", version)
    layout = Layout(state, jars, _find_java(), _free_ports(), getpass.getuser(), secure)
    _write_files(layout)
    try:
        if secure:
            _start_kdc(layout)
        _format_namenode(layout)
        _start_daemons(layout)
        _wait_until("all nodes are there", lambda: _nodes_are_up(layout))
        if secure:
            home = f"/user/{kerberos.USER}"
            _run_client(layout, "hdfs", "dfs", "-mkdir", "-p", home)
            _run_client(layout, "hdfs", "dfs", "-chown", kerberos.USER, home)
        _run_client(layout, "yarn", "rmadmin", "-addToClusterNodeLabels", f"{LABEL}(exclusive=true)")
        _run_client(layout, "yarn", "rmadmin", "-replaceLabelsOnNode", f"{layout.node_address(NODES[-1])}={LABEL}")
    except BaseException:
        shutil.copytree(state / "log", state.parent / "log-of-failure", dirs_exist_ok=True)
        _down(state)
        raise
    print(f"Hadoop {version} is up after {time.monotonic() - begun:.0f} s: {len(NODES)} nodes, one labelled {LABEL}")


def _resolve_jars(directory: Path, version: str) -> Path:
    """The jars, from Maven's repository."""
    complete, pom = directory / "complete", HERE / "pom.xml"
    if complete.exists() and complete.stat().st_mtime >= pom.stat().st_mtime:
        return directory
    if shutil.which("mvn") is None:
        raise ClusterError("Maven is missing: install the package `maven`")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    log = Path(f"{directory}.maven.log")
    command = ["mvn", "-B", "-ntp", "-f", str(pom), f"-Dhadoop.version={version}"]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={directory}", "-DincludeScope=runtime"]
    with log.open("wb") as file:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False)
    if done.returncode != 0:
        raise ClusterError(f"Maven could not get the jars:\n{_last_lines(log)}")
    complete.touch()
    return directory


def _find_java() -> Path:
    """JAVA_HOME, or where ``java`` is."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin/java") if home else Path(shutil.which("java") or "/nowhere")
    if not found.exists():
        raise ClusterError(
            f"there is no Java{f' in JAVA_HOME={home}' if home else ''}: install the package `openjdk-17-jdk`"
        )
    return found.resolve().parents[1]


def _free_ports() -> int:
    """A base such that all ports of the layout are free."""
    for base in PORT_BASES:
        layout = Layout(Path(), Path(), Path(), base, "")
        places = [("127.0.0.1", port) for port in layout.ports]
        nodes = (*NODES, SPARE)
        places += [(layout.node_host(node), int(layout.node_address(node, n)[-5:])) for node in nodes for n in range(3)]
        if all(_is_free(*place) for place in places):
            return base
    raise ClusterError(f"no free ports between {PORT_BASES[0]} and {PORT_BASES[-1]}")


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _write_files(layout: Layout) -> None:
    """Configuration, command lines, and the record by which later calls find the cluster."""
    for directory in ("bin", "log", "pid", "data/labels"):
        (layout.state / directory).mkdir(parents=True, exist_ok=True)
    _write_record(layout)
    confs = {layout.client_conf: configuration.client_files(layout)}
    confs.update({layout.node_conf(node): configuration.node_files(layout, node) for node in (*NODES, SPARE)})
    for conf, files in confs.items():
        for directory in configuration.webapp_directories(conf):
            directory.mkdir(parents=True)
        for name, text in files.items():
            (conf / name).write_text(text)
    (layout.state / "env.sh").write_text(_exports(layout))
    for name in ("hadoop", "hdfs", "yarn"):
        shutil.copy(HERE / "client", layout.state / "bin" / name)


def _write_record(layout: Layout) -> None:
    record = {"jars": str(layout.jars), "java_home": str(layout.java_home), "port": layout.port, "user": layout.user}
    record["secure"] = layout.secure
    (layout.state / "layout.json").write_text(json.dumps(record))


def _read_layout(state: Path) -> Layout:
    """The cluster that is up."""
    try:
        record = json.loads((state / "layout.json").read_text())
    except FileNotFoundError:
        raise ClusterError(f"nothing is up in {state}") from None
    paths = state, Path(record["jars"]), Path(record["java_home"])
    return Layout(*paths, record["port"], record["user"], record["secure"])


def _exports(layout: Layout) -> str:
    """Lines for a shell."""
    values = {**configuration.environment(layout), "HADOOP_JARS": str(layout.jars)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    if layout.secure:
        lines.append(f': "${{KRB5CCNAME:={layout.realm.tickets}}}"; export KRB5CCNAME')
    return "\n".join([*lines, f"export PATH={shlex.quote(str(layout.state / 'bin'))}:$PATH", ""])


def _client_environ(layout: Layout) -> dict[str, str]:
    environ = {**os.environ, **configuration.environment(layout)}
    environ["PATH"] = f"{layout.state / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}"
    return environ


def _run_client(layout: Layout, *command: str) -> None:
    """One of the command lines; raises with what it has said."""
    done = subprocess.run(
        [str(layout.state / "bin" / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        env=_client_environ(layout) | ({"KRB5CCNAME": str(_own_tickets(layout))} if layout.secure else {}),
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")


def _own_tickets(layout: Layout) -> Path:
    """Those of the cluster itself, whose commands are those of its administrator."""
    return layout.realm.directory / "own-tickets"


def _start_kdc(layout: Layout) -> None:
    missing = kerberos.missing_programs()
    if missing:
        raise ClusterError(
            f"{missing[0]} is missing: install the packages `krb5-kdc`, `krb5-admin-server` and `krb5-user`"
        )
    try:
        layout.realm.create()
        program, *arguments = layout.realm.command()
        environ = {**os.environ, **layout.realm.kdc_environment}
        _spawn(layout, "kdc", [f"{MARK}kdc", *arguments], environ, program)  # it has no option for a mark
        listens = Daemon("kdc", "", layout.state, f"127.0.0.1:{layout.realm.port}")
        _wait_until("the KDC listens", lambda: _listens(layout, listens))
        layout.realm.log_in("nn", _own_tickets(layout))
    except subprocess.CalledProcessError as error:
        raise ClusterError(f"{shlex.join(error.cmd)} failed:\n{error.stderr.decode()[-2000:]}") from error


def _java_command(layout: Layout, conf: Path, *arguments: str) -> list[str]:
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    sizes = [f"-Xmx{HEAP}", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:MaxMetaspaceSize=192m"]
    logs = ["-Dhadoop.root.logger=INFO,console", f"-Dhadoop.log.dir={layout.state / 'log'}"]
    java = str(layout.java_home / "bin/java")
    classpath = f"{conf}:{layout.jars}/*"
    return [java, *sizes, "-Djava.net.preferIPv4Stack=true", *opened, *logs, "-cp", classpath, *arguments]


def _format_namenode(layout: Layout) -> None:
    """An empty file system."""
    log = layout.state / "log/format.log"
    namenode = f"{PACKAGE}.hdfs.server.namenode.NameNode"
    with log.open("wb") as file:
        command = _java_command(layout, layout.client_conf, namenode, "-format", "-nonInteractive")
        environ = _client_environ(layout)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ, check=False)
    if done.returncode != 0:
        raise ClusterError(f"the file system cannot be made:\n{_last_lines(log)}")


def _central_daemons(layout: Layout) -> tuple[Daemon, ...]:
    conf, yarn = layout.client_conf, f"{PACKAGE}.yarn.server"
    return (
        Daemon("namenode", f"{PACKAGE}.hdfs.server.namenode.NameNode", conf, layout.namenode),
        Daemon("datanode", f"{PACKAGE}.hdfs.server.datanode.DataNode", conf, layout.at(2)),
        Daemon("resourcemanager", f"{yarn}.resourcemanager.ResourceManager", conf, layout.at(12)),
    )


def _node_daemons(layout: Layout) -> tuple[Daemon, ...]:
    node_class = f"{PACKAGE}.yarn.server.nodemanager.NodeManager"
    nodes = (*NODES, SPARE)
    return tuple(Daemon(f"node{n}", node_class, layout.node_conf(n), layout.node_address(n)) for n in nodes)


def _start_daemons(layout: Layout) -> None:
    """All of them at once, but for the spare node; each waits for what it needs."""
    daemons = (*_central_daemons(layout), *_node_daemons(layout)[: len(NODES)])
    for daemon in daemons:
        _start(layout, daemon)
    for daemon in daemons:
        _wait_until(f"{daemon.name} listens", lambda daemon=daemon: _listens(layout, daemon))


def _start(layout: Layout, daemon: Daemon) -> None:
    # Before the class, a property is the JVM's.
    command = _java_command(layout, daemon.conf, f"{MARK}{daemon.name}", daemon.java_class)
    _spawn(layout, daemon.name, command, _client_environ(layout))


def _spawn(
    layout: Layout, name: str, command: Sequence[str], environ: Mapping[str, str], program: str | None = None
) -> None:
    """Starts a daemon in a session of its own, so that it outlives this command."""
    with (layout.state / f"log/{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
            cwd=layout.state,
            start_new_session=True,
        )
    (layout.state / "pid" / name).write_text(str(process.pid))
    # A process that has just been started has no command line for a moment, by which _daemon_of() knows it.
    _wait_until(f"{name} runs", lambda: _daemon_of(process.pid) is not None or process.poll() is not None)


def _listens(layout: Layout, daemon: Daemon) -> bool:
    pid = int((layout.state / "pid" / daemon.name).read_text())
    if _daemon_of(pid) is None:
        raise ClusterError(f"{daemon.name} has ended:\n{_last_lines(layout.state / f'log/{daemon.name}.log')}")
    host, _, port = daemon.address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
        return True
    return False


def _nodes_are_up(layout: Layout) -> bool:
    """Whether YARN has all nodes that run and HDFS has one."""
    running = {name for _, name in _daemons(layout.state) if name.startswith("node")}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        nodes = _fetch(f"http://{layout.resourcemanager_web}/ws/v1/cluster/nodes?states=RUNNING")["nodes"]["node"]
        known = {daemon.name for daemon in _node_daemons(layout) for node in nodes if node["id"] == daemon.address}
        query = "Hadoop:service=NameNode,name=FSNamesystemState"
        (hdfs,) = _fetch(f"http://{layout.namenode_web}/jmx?qry={query}")["beans"]
        return running <= known and hdfs["NumLiveDataNodes"] >= 1
    return False


def _fetch(url: str) -> dict:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=5) as reply:
        return json.load(reply)


def _wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"not within {START_S:g} s: {what}")
        time.sleep(0.2)  # daemons of others give no notice


def _restart(state: Path, name: str | None) -> None:
    """Kills one daemon, as a crash would, and starts it again."""
    layout = _read_layout(state)
    daemon = _find(layout, name)
    _end([pid for pid, running in _daemons(state) if running == daemon.name], (signal.SIGKILL,))
    _start(layout, daemon)
    _wait_until(f"{name} listens", lambda: _listens(layout, daemon))
    _wait_until("all nodes are there", lambda: _nodes_are_up(layout))
    print(f"{name} is up again")


def _stop(state: Path, name: str | None, *, crash: bool) -> None:
    """Ends one daemon, and the containers of a node with it: in order, or at once, as when its machine goes down."""
    daemon = _find(_read_layout(state), name)
    pids = [pid for pid, running in _daemons(state) if running == daemon.name]
    _end(pids, (signal.SIGKILL,) if crash else (signal.SIGTERM, signal.SIGKILL))
    _end([*_containers(state, daemon.name)], (signal.SIGKILL,))
    print(f"{name} is down")


def _find(layout: Layout, name: str | None) -> Daemon:
    known = {daemon.name: daemon for daemon in (*_central_daemons(layout), *_node_daemons(layout))}
    if name not in known:
        raise ClusterError(f"expected one of {', '.join(known)}, got {name}")
    return known[name]


# ---- down and status -------------------------------------------------------------------------------------------------


def _down(state: Path) -> None:
    """Ends the daemons, what they ran, and removes the state."""
    nodes_first = sorted(_daemons(state), key=lambda found: not found[1].startswith("node"))
    _end([pid for pid, _ in nodes_first])
    _end([*_containers(state)])
    shutil.rmtree(state, ignore_errors=True)
    print(f"down: {len(nodes_first)} daemons")


def _daemons(state: Path) -> Iterator[tuple[int, str]]:
    """The daemons of this state directory that run, by the marks on their command lines: a pid may be another's now."""
    for file in sorted((state / "pid").glob("*")):
        name = _daemon_of(int(file.read_text()))
        if name == file.name:
            yield int(file.read_text()), name


def _daemon_of(pid: int) -> str | None:
    """Which daemon a process is; None for any other."""
    with contextlib.suppress(OSError):
        for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            if word.startswith(MARK.encode()):
                return word.decode()[len(MARK) :]
    return None


def _containers(state: Path, node: str = "") -> Iterator[int]:
    """Processes that work below the state directory: what a node that was killed, this one or any, has left behind."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink().is_relative_to(state / "data" / node):
                    yield int(entry.name)


def _end(pids: Sequence[int], signals: Sequence[int] = (signal.SIGTERM, signal.SIGKILL)) -> None:
    """Asks them to end, and kills those that do not."""
    for number in signals:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + END_S
        while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)  # not our children: there is nothing to wait on


def _runs(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def _status(state: Path) -> None:
    """What runs."""
    layout = _read_layout(state)
    total = 0
    for pid, name in _daemons(state):
        resident = _resident_mib(pid)
        total += resident
        print(f"{name:16} pid {pid}, {resident} MiB")
    print(f"{total} MiB; {layout.state}")
    for node in _fetch(f"http://{layout.resourcemanager_web}/ws/v1/cluster/nodes")["nodes"]["node"]:
        labels = ", ".join(node.get("nodeLabels", [])) or "none"
        print(f"{node['id']} {node['state']}, {node['numContainers']} containers, labels: {labels}")


def _resident_mib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    return 0


def _last_lines(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if not line.lstrip().startswith("at ")]
    return "\n".join(lines[-15:])


if __name__ == "__main__":
    sys.exit(main())
