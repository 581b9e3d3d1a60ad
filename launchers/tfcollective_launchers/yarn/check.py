"""The checks of ``tfcollective check --launcher yarn``."""

from __future__ import annotations

import shutil
import sys
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from tfcollective.launcher import (
    TIMING,
    Finding,
    JobOutcome,
    JobSpec,
    TaskSpec,
    TfCollectiveError,
    answer_of,
    environ_snapshot,
    exit_code,
    function_job,
    render,
)
from tfcollective_launchers.yarn.options import YarnOptions
from tfcollective_launchers.yarn.skein_client import YarnClient, import_skein

_UNSET_ADDRESS = "0.0.0.0"  # noqa: S104  what Hadoop's own defaults say
_RUN = Callable[[JobSpec], JobOutcome]


def findings(options: YarnOptions, run: _RUN) -> Iterator[Finding]:
    """Yields findings, up to one without which the next could not work; ``run`` runs a job."""
    environ = environ_snapshot()
    steps: tuple[Callable[[], Finding], ...] = (
        lambda: _configuration(environ),
        _java,
        _yarn_command,
        lambda: _skein(options),
    )
    for step in steps:
        finding = step()
        yield finding
        if not finding.ok:
            return
    good = True
    for finding in _cluster(options):
        good = good and finding.ok
        yield finding
    yield _hdfs()
    if not good:
        return
    if options.python is None and options.archive is None:
        packing = _packing()
        yield packing
        if not packing.ok:
            return
    yield _application(options, run)


def _configuration(environ: Mapping[str, str]) -> Finding:
    name = "configuration"
    folder = environ.get("HADOOP_CONF_DIR")
    if folder is None:
        return Finding(name, True, "HADOOP_CONF_DIR is not set: `yarn` finds its own")
    remedy = "let HADOOP_CONF_DIR name the directory of the cluster's core-site.xml and yarn-site.xml"
    try:
        rows = site_properties((Path(folder) / "yarn-site.xml").read_text("utf-8"))
    except (OSError, ElementTree.ParseError) as error:
        return Finding(name, False, f"HADOOP_CONF_DIR={folder}: {error}", remedy)
    manager = rows.get("yarn.resourcemanager.address") or rows.get("yarn.resourcemanager.hostname", "")
    if not manager and not any(key.startswith("yarn.resourcemanager.ha") for key in rows):
        manager = _UNSET_ADDRESS
    if manager.startswith(_UNSET_ADDRESS):
        return Finding(name, False, f"{folder}/yarn-site.xml does not say where the ResourceManager is", remedy)
    return Finding(name, True, f"{folder}, ResourceManager at {manager or 'several places'}")


def site_properties(text: str) -> dict[str, str]:
    """The names and values of a configuration file of Hadoop's."""
    rows = ElementTree.fromstring(text).findall("property")  # noqa: S314
    return {row.findtext("name", ""): row.findtext("value", "") for row in rows}


def _java() -> Finding:
    home = environ_snapshot().get("JAVA_HOME")
    java = str(Path(home, "bin/java")) if home else "java"
    return _command("Java", [java, "-version"], "install Java 8 or newer, as the cluster has it, or set JAVA_HOME")


def _yarn_command() -> Finding:
    remedy = "install Hadoop's client and put its bin directory on the PATH"
    return _command("command yarn", ["yarn", "version"], remedy)


def _command(name: str, command: Sequence[str], remedy: str) -> Finding:
    done = answer_of(command, TIMING.check)
    if done is None or done.returncode != 0:
        said = "not found, or no answer" if done is None else (done.stderr.strip().splitlines() or ["no reason"])[-1]
        return Finding(name, False, f"{' '.join(command)}: {said}", remedy)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return Finding(name, True, lines[0] if lines else "answers")


def _skein(options: YarnOptions) -> Finding:
    whose = "those of the given client" if options.skein_client is not None else "made new for every application"
    remedy = "pip install 'tfcollective[yarn]'"
    return Finding.of("skein", lambda: f"{import_skein().__version__}; TLS credentials: {whose}", remedy)


def _cluster(options: YarnOptions) -> Iterator[Finding]:
    try:
        with YarnClient.start(options.skein_client) as yarn:
            nodes = yarn.nodes()
            labels = sorted({label for node in nodes for label in node.labels})
            memory, vcores = sum(node.total.memory for node in nodes), sum(node.total.vcores for node in nodes)
            detail = f"{len(nodes)} nodes, {memory} MiB, {vcores} vcores, labels: {', '.join(labels) or 'none'}"
            yield Finding("ResourceManager", bool(nodes), detail, "see why no NodeManager runs")
            yield Finding.of("queue", lambda: yarn.check_queue(options.queue), "name one of them with --queue")
    except TfCollectiveError as error:
        remedy = "run `kinit` if Hadoop uses Kerberos; see whether `yarn node -list` answers"
        yield Finding("ResourceManager", False, str(error), remedy)


def _hdfs() -> Finding:
    """Writes a file, reads it, and removes it."""
    name, text = "HDFS", f"tfcollective {uuid.uuid4()}"
    if shutil.which("hdfs") is None:
        return Finding(name, True, "there is no command hdfs here: not looked at")
    path = f"/tmp/tfcollective-check-{uuid.uuid4().hex}"  # noqa: S108  on HDFS, with a name that cannot be guessed
    wrote = answer_of(["hdfs", "dfs", "-put", "-", path], TIMING.check, text)
    read = answer_of(["hdfs", "dfs", "-cat", path], TIMING.check)
    answer_of(["hdfs", "dfs", "-rm", "-skipTrash", path], TIMING.check)
    if read is not None and read.stdout == text:
        return Finding(name, True, f"{path} was written, read and removed")
    lines = ["no answer"] if wrote is None else wrote.stderr.strip().splitlines()
    said = lines[-1] if lines else "what was read is something else"
    return Finding(name, False, f"{path}: {said}", "see whether `hdfs dfs -put` works: space, rights, safe mode")


def _packing() -> Finding:
    try:
        version = metadata.version("cluster-pack")
    except metadata.PackageNotFoundError:
        detail = "no --remote-python and no --archive is given, and cluster-pack is not installed"
        return Finding("packing", False, detail, "pip install 'tfcollective[yarn]', or give one of them")
    return Finding("packing", True, f"cluster-pack {version} packs {sys.prefix}")


_OF_THE_PROBE = ("queue", "python", "archive", "pack", "files", "skein_client")


def _application(options: YarnOptions, run: _RUN) -> Finding:
    """A whole job with one container."""
    name = "an application with one container"
    platform = {field: getattr(options, field) for field in _OF_THE_PROBE}
    try:
        spec = function_job(
            answer,
            task_specs={"worker": TaskSpec("512 MiB", 1)},
            platform={**platform, "name": "tfcollective-check", "allocation_timeout": TIMING.check_start},
            env={key: value for key, value in environ_snapshot().items() if key == "PYTHONPATH"},
        )
        outcome = run(spec)
    except TfCollectiveError as error:
        return Finding(name, False, str(error), "see `tfcollective logs` of the application, if one is named")
    if exit_code(outcome) != 0:
        return Finding(name, False, render(outcome), "see what it says above")
    return Finding(name, True, "has run")


def answer() -> int:
    """Runs in the container: shows that tfcollective and its native library are there."""
    import tfcollective

    tfcollective.init()
    size = tfcollective.size()
    tfcollective.shutdown()
    return size
