"""The SparkContext of a job: the user's own, or one for this job; and why one cannot run it. Only this module, and what
runs in tasks, knows pyspark."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from typing import Any

from tfcollective.launcher import ConfigError, LaunchError, UnsupportedError, end_process, environ_snapshot, get_logger
from tfcollective_launchers.spark.options import SparkOptions

_LOG = get_logger(__name__)
_DYNAMIC = "spark.dynamicAllocation.enabled"
# Of a context that is made for one job; what the user says counts.
_DEFAULTS = {
    "spark.app.name": "tfcollective",
    _DYNAMIC: "false",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.ui.enabled": "false",  # it listens on all interfaces, for anyone
    "spark.ui.showConsoleProgress": "false",
}
_PYTHON = "PYSPARK_PYTHON"
_OF_SUBMIT = "PYSPARK_GATEWAY_PORT"  # the JVM has started this process, not the other way round
_JVM_END_S = 10.0


def import_pyspark() -> Any:
    """The module; ConfigError that names the extra when it is not installed."""
    try:
        import pyspark
    except ImportError as error:
        raise ConfigError(f"the launcher 'spark' needs pyspark: pip install 'tfcollective[spark]' ({error})") from error
    return pyspark


def active_context(options: SparkOptions) -> Any:
    """The SparkContext that the job is to use, if there is one already; None: one has to be made.

    Raises:
        ConfigError: what was given is not a session or context, has been stopped, or is on another master.
        UnsupportedError: it is a session of Spark Connect.
    """
    pyspark = import_pyspark()
    given = options.spark
    if given is None:
        found = pyspark.SparkContext._active_spark_context
        if found is None and "SPARK_REMOTE" in environ_snapshot() and options.master is None:
            raise _connect_refused()
    else:
        if type(given).__module__.startswith("pyspark.sql.connect"):
            raise _connect_refused()
        found = given if isinstance(given, pyspark.SparkContext) else getattr(given, "sparkContext", None)
        if not isinstance(found, pyspark.SparkContext):
            raise ConfigError(f"spark: expected a SparkSession or a SparkContext, got {given!r}")
    if found is None:
        return None
    if found._jsc is None or found._jsc.sc().isStopped():
        raise ConfigError("spark: this SparkContext has been stopped: make another one")
    if options.master is not None and options.master != found.master:
        raise ConfigError(
            f"master: this process has a SparkContext on {found.master} already, and there can be one only: stop it, "
            f"or leave {options.master} out"
        )
    return found


def _connect_refused() -> UnsupportedError:
    return UnsupportedError(
        "Spark Connect: such a session has no SparkContext, and without one no tasks can be started together: run this "
        "program with a classic session (spark-submit, or --master spark://HOST:PORT, yarn, k8s://..., local[N])"
    )


@dataclass(frozen=True)
class OwnContext:
    """A SparkContext that was made for one job.

    Attributes:
        context: it.
        jvm: whether the JVM was started for it, too. What it was started with would hold for later contexts.
    """

    context: Any
    jvm: bool

    def stop(self) -> None:
        """Ends the application and what was started for it."""
        self.context.stop()
        kind = type(self.context)
        if self.jvm and kind._gateway is not None:
            gateway, kind._gateway, kind._jvm = kind._gateway, None, None
            gateway.shutdown()
            gateway.proc.stdin.close()
            end_process(gateway.proc, _JVM_END_S)


def wanted_conf(options: SparkOptions) -> Any:
    """The SparkConf of a job: what Spark is configured with, and what the options say.

    Raises ConfigError when no master is named, or the properties ask for dynamic allocation.
    """
    if options.conf.get(_DYNAMIC, "false").lower() == "true":
        raise _dynamic_refused()
    conf = import_pyspark().SparkConf()
    for name, value in options.conf.items():
        conf.set(name, value)
    if options.name is not None:
        conf.set("spark.app.name", options.name)
    if options.master is not None:
        conf.setMaster(options.master)
    if not conf.contains("spark.master"):
        raise ConfigError(
            "no Spark is there to run on: name one with --master (master= in platform): spark://HOST:PORT, yarn, "
            "k8s://..., or local[4] for this machine"
        )
    return conf


def make_context(options: SparkOptions, cores: int) -> OwnContext:
    """A new SparkContext for one job. Ctrl-C is handled as before afterwards: pyspark would cancel all jobs.

    Args:
        options: the job's.
        cores: of how many cores a standalone cluster is asked at most.

    Raises:
        ConfigError: no master is named, there is no Java, or the properties ask for dynamic allocation.
        LaunchError: Spark cannot be reached, or does not start.
    """
    pyspark = import_pyspark()
    conf = wanted_conf(options)
    for name, value in {**_DEFAULTS, "spark.cores.max": str(cores)}.items():
        conf.setIfMissing(name, value)
    check_java()
    handler = signal.getsignal(signal.SIGINT)
    jvm = pyspark.SparkContext._gateway is None and _OF_SUBMIT not in environ_snapshot()
    try:
        made = pyspark.SparkContext(conf=conf)
    except Exception as error:
        raise LaunchError(f"Spark on {conf.get('spark.master')} cannot be started: {first_line(error)}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
    made.pythonExec = options.python or environ_snapshot().get(_PYTHON) or sys.executable
    return OwnContext(made, jvm)


def check_java() -> str:
    """The path of the interpreter that Spark starts. Raises ConfigError when there is none."""
    home = environ_snapshot().get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else None  # noqa: PTH118
    java = java or shutil.which("java")
    if java is None:
        raise ConfigError("Spark needs Java, which is not here: install a JRE 17, or set JAVA_HOME")
    return java


def check_context(context: Any) -> None:
    """Raises ConfigError when this context can start no tasks together."""
    if context.getConf().get(_DYNAMIC, "false").lower() == "true" and not context.master.startswith("local"):
        raise _dynamic_refused()


def _dynamic_refused() -> ConfigError:
    return ConfigError(
        f"{_DYNAMIC}: Spark starts tasks together (barrier execution mode) only without dynamic allocation "
        f"(SPARK-24942): start the application with {_DYNAMIC}=false and a fixed number of executors"
    )


def slots_of(context: Any) -> int | None:
    """Returns the number of tasks of the default resource profile that the present executors can run at once; None:
    this Spark does not tell.
    """
    try:
        scala = context._jsc.sc()
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
    except Exception as error:  # noqa: BLE001  Java's exceptions, and py4j's own for a method that is not there
        _LOG.info("spark: the number of task slots is unknown: %s", first_line(error))
        return None


def driver_address(context: Any) -> str | None:
    """The address of this machine at which executors reach the driver; None: Spark has a name that this machine does
    not know."""
    host = context.getConf().get("spark.driver.host", "")
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]) if host else None
    except OSError:
        return None


def cancel(context: Any, group: str) -> None:
    """Cancels the jobs of a group, also one that Spark has yet to take up."""
    scala = context._jsc.sc()
    later = getattr(scala, "cancelJobGroupAndFutureJobs", None)
    try:
        (context.cancelJobGroup if later is None else later)(group)
    except Exception as error:  # noqa: BLE001  of 3.5, which has it not, or of an application that has ended
        _LOG.info("spark: %s", first_line(error))
        context.cancelJobGroup(group)


def first_line(error: BaseException) -> str:
    """Returns the message of an error, without the Java stack that follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else repr(error)
