"""The checks of ``tfcollective check --launcher spark``. No application is started: that takes Spark a while, and
executors."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from functools import partial

from tfcollective.launcher import TIMING, ConfigError, Finding, LaunchError
from tfcollective_launchers.spark.context import check_java, import_pyspark, wanted_conf
from tfcollective_launchers.spark.options import SparkOptions

_STANDALONE = re.compile(r"spark://(?P<addresses>.+)")


def findings(options: SparkOptions) -> Iterator[Finding]:
    """Yields one finding after the other, until the next check could not work."""
    looks = (_pyspark, _java, partial(_application, options), partial(_master, options))
    return Finding.until_one_fails(looks)


def _pyspark() -> Finding:
    remedy = "pip install 'tfcollective[spark]', in the cluster's own version of Spark"
    return Finding.of("pyspark", lambda: str(import_pyspark().__version__), remedy)


def _java() -> Finding:
    return Finding.of("Java", check_java, "install a JRE 17 (Debian: openjdk-17-jre-headless), or set JAVA_HOME")


def _application(options: SparkOptions) -> Finding:
    """Returns the application's properties, from the options and from Spark's own configuration."""
    return Finding.of(
        "application", lambda: f"runs on {wanted_conf(options).get('spark.master')}", "see --conf, --master"
    )


def _master(options: SparkOptions) -> Finding:
    name, master = "master", str(wanted_conf(options).get("spark.master"))
    found = _STANDALONE.fullmatch(master)
    if found is None:
        return Finding(name, True, f"{master}: no host of a standalone cluster to look at")
    remedy = "see whether the master runs there, and what lies between: DNS, a firewall"
    return Finding.of(name, lambda: _reach(found["addresses"].split(",")), remedy)


def _reach(addresses: list[str]) -> str:
    """The first master of several that can be connected to. Raises LaunchError."""
    reasons = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"--master: expected spark://HOST:PORT, got {address!r}")
        try:
            with socket.create_connection((host, int(port)), TIMING.connect):
                return f"{address} takes connections"
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
    raise LaunchError(f"cannot be connected to: {'; '.join(reasons)}")
