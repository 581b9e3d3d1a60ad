"""The configuration of the cluster that :mod:`cluster` runs: pure, from a :class:`Layout` to the text of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from kerberos import REALM, Realm

__all__ = ["LABEL", "NODES", "SPARE", "Layout", "client_files", "environment", "node_files", "webapp_directories"]

NODES = (1, 2)
SPARE = 3  # a node that is there only when it is asked for
GPUS = 2  # of the labelled node, as YARN counts them: nothing looks whether there are any
LABEL = "gpu"  # of the second node, which serves only applications that ask for it
NODE_MEMORY_MB = 6144
NODE_VCORES = 8
QUEUE_VCORES = 6  # for one container, as the queue allows
_LOOPBACK = "127.0.0.1"
_GPU = "yarn.io/gpu"
# What an application's containers inherit of the node's environment: skein's master needs JAVA_HOME there.
_INHERITED = "JAVA_HOME,JAVA_TOOL_OPTIONS,KRB5_CONFIG,HADOOP_CONF_DIR,HADOOP_HOME,PATH,LANG,TZ"
_RENEWED_MS = 60000  # for so long a token for HDFS is good, unless it is renewed


@dataclass(frozen=True)
class Layout:
    """Where everything is.

    Attributes:
        state: the one directory that holds what runs: configuration, data, logs.
        jars: the directory of the jars.
        java_home: of the Java that runs them.
        port: the first of the ports.
        user: who runs it.
        secure: whether clients and services prove by Kerberos who they are.
    """

    state: Path
    jars: Path
    java_home: Path
    port: int
    user: str
    secure: bool = False

    @property
    def realm(self) -> Realm:
        """Of a secure one."""
        return Realm(self.state / "kerberos", self.port + 60)

    @property
    def client_conf(self) -> Path:
        """HADOOP_CONF_DIR of clients, and of all daemons but the nodes."""
        return self.state / "conf"

    def node_conf(self, node: int) -> Path:
        """A node's own configuration."""
        return self.state / f"conf-node{node}"

    def at(self, offset: int) -> str:
        """HOST:PORT of a daemon that is there once."""
        return f"{_LOOPBACK}:{self.port + offset}"

    @property
    def namenode(self) -> str:
        """Of HDFS."""
        return self.at(0)

    @property
    def namenode_web(self) -> str:
        """Of HDFS over HTTP."""
        return self.at(1)

    @property
    def resourcemanager_web(self) -> str:
        """Of YARN over HTTP."""
        return self.at(14)

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports on 127.0.0.1."""
        return tuple(self.port + offset for offset in (0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 60))

    def node_host(self, node: int) -> str:
        """Every node has an address of its own on loopback: to a scheduler, one address is one host."""
        return f"127.0.0.1{node}"

    def node_address(self, node: int, offset: int = 0) -> str:
        """HOST:PORT of a node's daemon."""
        return f"{self.node_host(node)}:{self.port + 20 + 10 * node + offset}"


def client_files(layout: Layout) -> dict[str, str]:
    """The text of each file of the clients' configuration, by name."""
    return {
        "core-site.xml": _xml(_core(layout)),
        "hdfs-site.xml": _xml(_hdfs(layout)),
        "yarn-site.xml": _xml(_yarn(layout)),
        "capacity-scheduler.xml": _xml(_scheduler()),
        "resource-types.xml": _xml({"yarn.resource-types": _GPU}),
        "log4j.properties": _LOG4J,
    }


def node_files(layout: Layout, node: int) -> dict[str, str]:
    """The same for one node."""
    gpus = {f"yarn.nodemanager.resource-type.{_GPU}": GPUS if node == NODES[-1] else 0}
    own = {"yarn-site.xml": {**_yarn(layout), **_node(layout, node)}, "node-resources.xml": gpus}
    return {**client_files(layout), **{name: _xml(properties) for name, properties in own.items()}}


def webapp_directories(conf: Path) -> tuple[Path, ...]:
    """Empty stand-ins for web pages: the jars hold none, and the daemons do not start without their directories."""
    return tuple(conf / "webapps" / name / "WEB-INF" for name in ("hdfs", "datanode", "secondary", "static"))


def environment(layout: Layout) -> dict[str, str]:
    """What clients and nodes need to find it."""
    return {
        "JAVA_HOME": str(layout.java_home),
        "HADOOP_HOME": str(layout.state),
        "HADOOP_CONF_DIR": str(layout.client_conf),
        **(layout.realm.environment if layout.secure else {}),
    }


def _core(layout: Layout) -> dict[str, object]:
    return {
        "fs.defaultFS": f"hdfs://{layout.namenode}",
        "hadoop.tmp.dir": layout.state / "data/tmp",
        "hadoop.http.staticuser.user": layout.user,
        **(_secure_core(layout) if layout.secure else {}),
    }


def _secure_core(layout: Layout) -> dict[str, object]:
    return {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        # All services are processes of the user who runs the cluster.
        "hadoop.security.auth_to_local": f"RULE:[2:$1/$2@$0](.*/localhost@{REALM})s/.*/{layout.user}/\nDEFAULT",
    }


def _secure_hdfs(layout: Layout) -> dict[str, object]:
    realm = layout.realm
    return {
        "dfs.block.access.token.enable": "true",
        "dfs.namenode.kerberos.principal": realm.principal("nn"),
        "dfs.namenode.keytab.file": realm.keytab("nn"),
        "dfs.datanode.kerberos.principal": realm.principal("dn"),
        "dfs.datanode.keytab.file": realm.keytab("dn"),
        "dfs.web.authentication.kerberos.principal": realm.principal("HTTP"),
        "dfs.web.authentication.kerberos.keytab": realm.keytab("HTTP"),
        # Data are transferred after a proof of identity, over ports that any user may have, and web pages without TLS.
        "dfs.data.transfer.protection": "authentication",
        "ignore.secure.ports.for.testing": "true",
        "dfs.namenode.delegation.token.renew-interval": _RENEWED_MS,
    }


def _secure_yarn(layout: Layout) -> dict[str, object]:
    realm = layout.realm
    return {
        "yarn.resourcemanager.principal": realm.principal("rm"),
        "yarn.resourcemanager.keytab": realm.keytab("rm"),
        "yarn.nodemanager.principal": realm.principal("nm"),
        "yarn.nodemanager.keytab": realm.keytab("nm"),
        "yarn.resourcemanager.webapp.delegation-token-auth-filter.enabled": "false",
        # With Kerberos a node reads logs by Hadoop's native library, which no jar has.
        "yarn.log-aggregation-enable": "false",
    }


def _hdfs(layout: Layout) -> dict[str, object]:
    return {
        "dfs.replication": 1,
        "dfs.namenode.name.dir": f"file://{layout.state}/data/namenode",
        "dfs.namenode.rpc-address": layout.namenode,
        "dfs.namenode.http-address": layout.namenode_web,
        "dfs.namenode.safemode.extension": 0,
        "dfs.namenode.edits.noeditlogchannelflush": "true",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.datanode.data.dir": f"file://{layout.state}/data/datanode",
        "dfs.datanode.address": layout.at(2),
        "dfs.datanode.http.address": layout.at(3),
        "dfs.datanode.ipc.address": layout.at(4),
        "dfs.datanode.hostname": _LOOPBACK,
        "dfs.heartbeat.interval": 1,
        **(_secure_hdfs(layout) if layout.secure else {}),
    }


def _yarn(layout: Layout) -> dict[str, object]:
    return {
        "yarn.resourcemanager.hostname": _LOOPBACK,
        "yarn.resourcemanager.bind-host": _LOOPBACK,
        "yarn.resourcemanager.address": layout.at(10),
        "yarn.resourcemanager.scheduler.address": layout.at(11),
        "yarn.resourcemanager.resource-tracker.address": layout.at(12),
        "yarn.resourcemanager.admin.address": layout.at(13),
        "yarn.resourcemanager.webapp.address": layout.resourcemanager_web,
        "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity."
        "CapacityScheduler",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 200,
        "yarn.resourcemanager.am.max-attempts": 2,
        # Applications go on when it is started again.
        "yarn.resourcemanager.recovery.enabled": "true",
        "yarn.resourcemanager.store.class": "org.apache.hadoop.yarn.server.resourcemanager.recovery."
        "FileSystemRMStateStore",
        "yarn.resourcemanager.fs.state-store.uri": f"file://{layout.state}/data/resourcemanager",
        "yarn.resourcemanager.connect.retry-interval.ms": 1000,
        "yarn.scheduler.minimum-allocation-mb": 64,
        "yarn.scheduler.maximum-allocation-mb": NODE_MEMORY_MB,
        "yarn.scheduler.maximum-allocation-vcores": NODE_VCORES,
        "yarn.am.liveness-monitor.expiry-interval-ms": 300000,
        "yarn.nm.liveness-monitor.expiry-interval-ms": 60000,
        "yarn.node-labels.enabled": "true",
        "yarn.node-labels.fs-store.root-dir": f"file://{layout.state}/data/labels",
        "yarn.application.classpath": f"{layout.client_conf},{layout.jars}/*",
        "yarn.log-aggregation-enable": "true",
        "yarn.nodemanager.remote-app-log-dir": "/logs",
        **(_secure_yarn(layout) if layout.secure else {}),
    }


def _node(layout: Layout, node: int) -> dict[str, object]:
    return {
        "yarn.nodemanager.hostname": layout.node_host(node),
        "yarn.nodemanager.bind-host": layout.node_host(node),
        "yarn.nodemanager.address": layout.node_address(node),
        "yarn.nodemanager.localizer.address": layout.node_address(node, 1),
        "yarn.nodemanager.webapp.address": layout.node_address(node, 2),
        "yarn.nodemanager.local-dirs": layout.state / f"data/node{node}/local",
        "yarn.nodemanager.log-dirs": layout.state / f"data/node{node}/log",
        "yarn.nodemanager.resource.memory-mb": NODE_MEMORY_MB,
        "yarn.nodemanager.resource.cpu-vcores": NODE_VCORES,
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "true",
        # Where it is on, the kernel is to enforce the limit, and without cgroups it is not enforced.
        "yarn.nodemanager.resource.memory.enforced": "false",
        "yarn.nodemanager.container-monitor.interval-ms": 1000,
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 99.5,
        "yarn.nodemanager.sleep-delay-before-sigkill.ms": 250,
        "yarn.nodemanager.env-whitelist": _INHERITED,
    }


def _scheduler() -> dict[str, object]:
    root, queue = "yarn.scheduler.capacity.root", "yarn.scheduler.capacity.root.default"
    return {
        f"{root}.queues": "default",
        f"{queue}.capacity": 100,
        f"{queue}.maximum-capacity": 100,
        f"{queue}.state": "RUNNING",
        f"{queue}.maximum-allocation-vcores": QUEUE_VCORES,
        f"{root}.acl_submit_applications": "*",
        f"{root}.acl_administer_queue": "*",
        f"{root}.accessible-node-labels": "*",
        f"{queue}.accessible-node-labels": "*",
        f"{root}.accessible-node-labels.{LABEL}.capacity": 100,
        f"{queue}.accessible-node-labels.{LABEL}.capacity": 100,
        f"{queue}.accessible-node-labels.{LABEL}.maximum-capacity": 100,
        "yarn.scheduler.capacity.maximum-am-resource-percent": 0.8,
        "yarn.scheduler.capacity.node-locality-delay": -1,
        # The default one does not count vcores.
        "yarn.scheduler.capacity.resource-calculator": "org.apache.hadoop.yarn.util.resource."
        "DominantResourceCalculator",
    }


def _xml(properties: Mapping[str, object]) -> str:
    rows = "".join(
        f"  <property><name>{escape(name)}</name><value>{escape(str(value))}</value></property>\n"
        for name, value in properties.items()
    )
    return f'<?xml version="1.0"?>\n<configuration>\n{rows}</configuration>\n'


_LOG4J = """\
log4j.rootLogger=${hadoop.root.logger}
hadoop.root.logger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
"""
