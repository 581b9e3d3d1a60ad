"""The findings of `tfcollective check --launcher yarn` without a cluster."""

import os
import sys

import pytest
from tfcollective_launchers.yarn.check import findings, site_properties
from tfcollective_launchers.yarn.launcher import run_application
from tfcollective_launchers.yarn.options import YarnOptions
from tfcollective_launchers.yarn.skein_client import import_skein

from tfcollective._base.errors import ConfigError
from tfcollective._launch.plan.spec import JobSpec

SITE = """<?xml version="1.0"?>
<configuration>
  <property><name>{name}</name><value>{value}</value></property>
</configuration>
"""


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """A configuration directory, and programs of our own on the PATH."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def write(name, value):
        (tmp_path / "yarn-site.xml").write_text(SITE.format(name=name, value=value))

    def program(name, text, code=0):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho '{text}' >&{2 if code else 1}\nexit {code}\n")
        path.chmod(0o700)

    write.program = program
    return write


def look():
    def never(spec):
        raise AssertionError("no job can run here")

    return list(findings(YarnOptions(python="/usr/bin/python3"), never))


def test_a_missing_resource_manager_ends_it(conf):
    (finding,) = look()
    assert (finding.name, finding.ok) == ("configuration", False)
    assert "yarn-site.xml" in finding.detail
    assert "HADOOP_CONF_DIR" in finding.remedy
    conf("yarn.resourcemanager.address", "0.0.0.0:8032")
    (finding,) = look()
    assert "does not say where the ResourceManager is" in finding.detail


def test_every_missing_program_has_a_remedy(conf):
    conf("yarn.resourcemanager.hostname", "master")
    *good, finding = look()
    assert [one.name for one in good] == ["configuration"]
    assert good[0].detail.endswith("ResourceManager at master")
    assert (finding.name, finding.ok) == ("Java", False)
    conf.program("java", "openjdk 17")
    *good, finding = look()
    assert [one.name for one in good] == ["configuration", "Java"]
    assert (finding.name, finding.ok) == ("command yarn", False)
    conf.program("yarn", "no Hadoop here", code=3)
    finding = look()[-1]
    assert finding.detail == "yarn version: no Hadoop here"
    assert "PATH" in finding.remedy


def test_nothing_is_packed_without_yarn_and_java(conf):
    with pytest.raises(ConfigError, match="no command `yarn` on the PATH"):
        run_application(JobSpec(("python", "train.py"), 1))
    conf.program("yarn", "Hadoop 3.4.3")
    with pytest.raises(ConfigError, match="there is no Java"):
        run_application(JobSpec(("python", "train.py"), 1))


def test_properties_of_a_file():
    assert site_properties(SITE.format(name="a", value="b")) == {"a": "b"}


@pytest.mark.parametrize("before", [None, "1"])
def test_grpc_is_imported_without_handlers_of_fork(before, tmp_path, monkeypatch):
    """They end a rank that a container starts, see import_skein. Jobs find their own setting."""
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
    if before is not None:
        monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", before)
    (tmp_path / "skein.py").write_text("import os\nFOUND = os.environ.get('GRPC_ENABLE_FORK_SUPPORT')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "skein", raising=False)
    assert import_skein().FOUND == "0"
    assert os.environ.get("GRPC_ENABLE_FORK_SUPPORT") == before
    del sys.modules["skein"]
