"""The cluster of tools/hadoop: what it writes, without starting anything."""

import dataclasses
import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "tools" / "hadoop"


@pytest.fixture(name="configuration", scope="module")
def _configuration():
    sys.path.insert(0, str(FOLDER))  # it imports a module beside it
    spec = importlib.util.spec_from_file_location("tools_hadoop_configuration", FOLDER / "configuration.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    sys.path.remove(str(FOLDER))
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


def test_every_node_has_own_host_and_ports(configuration, layout):
    first, second = (
        properties(configuration.node_files(layout, node)["yarn-site.xml"]) for node in configuration.NODES
    )
    for key in ("hostname", "address", "localizer.address", "webapp.address", "local-dirs", "log-dirs"):
        assert first[f"yarn.nodemanager.{key}"] != second[f"yarn.nodemanager.{key}"]


def test_the_queue_gives_out_the_labelled_node(configuration, layout):
    rows = properties(configuration.client_files(layout)["capacity-scheduler.xml"])
    assert rows[f"yarn.scheduler.capacity.root.default.accessible-node-labels.{configuration.LABEL}.capacity"] == "100"


def test_the_labelled_node_has_gpus_for_yarn(configuration, layout):
    counts = [
        properties(configuration.node_files(layout, node)["node-resources.xml"]) for node in (*configuration.NODES, 3)
    ]
    assert [one["yarn.nodemanager.resource-type.yarn.io/gpu"] for one in counts] == ["0", "2", "0"]
    assert "yarn.io/gpu" in configuration.client_files(layout)["resource-types.xml"]


def test_only_services_of_secure_clusters_have_keys(configuration, layout):
    secure = dataclasses.replace(layout, secure=True)
    for one, found in ((layout, set()), (secure, {"nn", "dn", "rm", "nm", "HTTP"})):
        files = configuration.client_files(one)
        rows = {**properties(files["hdfs-site.xml"]), **properties(files["yarn-site.xml"])}
        keytabs = [Path(value).stem for value in rows.values() if value.endswith(".keytab")]
        assert set(keytabs) == found
    assert configuration.environment(secure)["KRB5_CONFIG"] == "/state/kerberos/krb5.conf"


def test_text_that_means_something_in_xml_is_escaped(configuration, layout):
    rows = properties(configuration.client_files(layout)["yarn-site.xml"])
    assert rows["yarn.application.classpath"].endswith("/jars & more/*")
