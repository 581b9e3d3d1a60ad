"""The cluster of tools/hadoop: what it writes, without starting anything."""

import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "tools" / "hadoop"


@pytest.fixture(name="configuration", scope="module")
def _configuration():
    spec = importlib.util.spec_from_file_location("tools_hadoop_configuration", FOLDER / "configuration.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="layout")
def _layout(configuration):
    return configuration.Layout(Path("/state"), Path("/jars & more"), Path("/java"), 28000, "me")


def properties(text):
    rows = ElementTree.fromstring(text).findall("property")
    return {row.findtext("name"): row.findtext("value") for row in rows}


def test_all_services_listen_on_loopback_only(configuration, layout):
    files = [configuration.client_files(layout), *(configuration.node_files(layout, n) for n in configuration.NODES)]
    for one in files:
        for name, text in one.items():
            if name.endswith(".xml"):
                for key, value in properties(text).items():
                    if re.search(r":\d+$", value) or key.endswith(("hostname", "bind-host")):
                        assert value.replace("hdfs://", "").startswith("127.0.0."), key


def test_every_node_has_a_host_and_ports_of_its_own(configuration, layout):
    first, second = (
        properties(configuration.node_files(layout, node)["yarn-site.xml"]) for node in configuration.NODES
    )
    for key in ("hostname", "address", "localizer.address", "webapp.address", "local-dirs", "log-dirs"):
        assert first[f"yarn.nodemanager.{key}"] != second[f"yarn.nodemanager.{key}"]


def test_the_queue_gives_out_the_labelled_node(configuration, layout):
    rows = properties(configuration.client_files(layout)["capacity-scheduler.xml"])
    assert rows[f"yarn.scheduler.capacity.root.default.accessible-node-labels.{configuration.LABEL}.capacity"] == "100"


def test_text_that_means_something_in_xml_is_escaped(configuration, layout):
    rows = properties(configuration.client_files(layout)["yarn-site.xml"])
    assert rows["yarn.application.classpath"].endswith("/jars & more/*")
