"""Settings: the one reader of the environment.

Every environment variable of tfcollective is one row of :data:`VARIABLES`. Entry points call :meth:`Settings.load`
once; from there on settings travel as a value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tfcollective.errors import ConfigError
from tfcollective.log import LEVELS, get_logger
from tfcollective.tasks import TaskKey
from tfcollective.timing import TIMING
from tfcollective.topology import Endpoint

__all__ = [
    "ENCRYPTIONS",
    "ENGINES",
    "IDENTITIES",
    "PREFIX",
    "TF_CONFIG",
    "TRANSPORTS",
    "VARIABLES",
    "Alias",
    "Settings",
    "Variable",
    "environ_snapshot",
    "first_on_path",
    "hide_tf_config",
    "identity_variables",
    "markdown_table",
    "variable",
]

PREFIX = "TFCOLLECTIVE_"
TF_CONFIG = "TF_CONFIG"
TRANSPORTS = ("auto", "tcp")
ENCRYPTIONS = ("auto", "on", "off")
# Who moves the data: see tfcollective.communicator.external.
ENGINES = ("native", "horovod", "mpi")
# Who may tell a process who it is, in order of precedence: see tfcollective.identity.discovery.
IDENTITIES = ("auto", "launcher", "tf_config", "vertex", "sagemaker", "mpi", "slurm", "kubernetes", "single")
_LOG = get_logger(__name__)


@dataclass(frozen=True)
class Alias:
    """A variable of Horovod's that means the same: it counts where ours is not set. ``parse`` as in Variable."""

    name: str
    parse: Callable[[str], Any]


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes:
        field: the attribute of :class:`Settings` that holds its value.
        kind: what its text looks like, for the documentation.
        parse: text -> value; raises ValueError (ConfigError is one) with a reason.
        doc: one sentence.
        identity: whether it says who a process is in its job; a job that is started inside another has its own.
        alias: a name that scripts written for Horovod use.
    """

    field: str
    kind: str
    parse: Callable[[str], Any]
    doc: str
    identity: bool = False
    alias: Alias | None = None

    @property
    def name(self) -> str:
        """The name in the environment."""
        return PREFIX + self.field.upper()

    @property
    def default(self) -> Any:
        """The value when the variable is unset or empty: that of the field."""
        return getattr(Settings, self.field)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("it must be above 0")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError("it must be 0 or more")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("it must be 1 or more")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("it must be 0 or more")
    return value


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        value = text.lower()
        if value not in choices:
            raise ValueError("it must be one of " + ", ".join(choices))
        return value

    return parse


def _flag(text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true", "no", "yes"):
        raise ValueError("it must be 0 or 1")
    return text.lower() in ("1", "true", "yes")


def _horovod_level(text: str) -> str:
    level = text.lower()
    return _one_of(*LEVELS)({"trace": "debug", "fatal": "error"}.get(level, level))


VARIABLES: tuple[Variable, ...] = (
    Variable("coordinator", "HOST:PORT", Endpoint.parse, "Where the job's coordinator listens.", identity=True),
    Variable("key_file", "path", str, "A file of mode 0600 that holds the job key in hexadecimal.", identity=True),
    Variable("key_fd", "number", _whole, "An inherited descriptor of such a file, instead of its path.", identity=True),
    Variable("key", "hexadecimal", str, "The job key itself, for example from a Kubernetes Secret.", identity=True),
    Variable("insecure", "0 or 1", _flag, "Without a launcher: do without a job key. Anybody can join the job."),
    Variable(
        "encryption",
        "auto, on or off",
        _one_of(*ENCRYPTIONS),
        "Whether connections to the coordinator are encrypted: those between hosts, all, or none. The same everywhere.",
    ),
    Variable("job_id", "text", str, "The name of the job.", identity=True),
    Variable("task", "TYPE:INDEX", TaskKey.parse, "The task of this process, for example worker:3.", identity=True),
    Variable("evaluator", "0 or 1", _flag, "Whether the job has an evaluator.", identity=True),
    Variable("size", "number", _count, "The number of processes that take part in collectives.", identity=True),
    Variable(
        "max_restarts",
        "number",
        _whole,
        "How often the launcher starts all ranks again when one fails.",
        identity=True,
    ),
    Variable("restarts", "number", _whole, "How often it has.", identity=True),
    Variable(
        "rendezvous",
        "HOST:PORT",
        Endpoint.parse,
        "Without a launcher: where rank 0's coordinator listens.",
        identity=True,
    ),
    Variable(
        "identity",
        "name",
        _one_of(*IDENTITIES),
        "Who says which rank this is: " + ", ".join(IDENTITIES) + ".",
        identity=True,
    ),
    Variable(
        "ps_policy",
        "error or exit0",
        _one_of("error", "exit0"),
        "What `init()` does in a ps process: raise an error, or end the process with exit code 0.",
    ),
    Variable(
        "keep_tf_config",
        "0 or 1",
        _flag,
        "Leave `TF_CONFIG` in the environment; else `init()` takes it out, so that TensorFlow does not act on it.",
    ),
    Variable(
        "tf_config",
        "JSON",
        str,
        "What `TF_CONFIG` was before `init()` took it out of the environment.",
        identity=True,
    ),
    Variable("node_id", "text", str, "Names this node; processes with equal node ids share memory.", identity=True),
    Variable(
        "bind_host",
        "address",
        str,
        "The address of the interface that peers connect to; by default the one that leads to them.",
    ),
    Variable(
        "op_timeout",
        "seconds",
        _positive,
        "How long a collective may take.",
        alias=Alias("HOROVOD_GLOO_TIMEOUT_SECONDS", _positive),
    ),
    Variable(
        "start_timeout",
        "seconds",
        _positive,
        "How long the ranks wait for each other in `init()`.",
        alias=Alias("HOROVOD_START_TIMEOUT", _positive),
    ),
    Variable(
        "grace",
        "seconds",
        _not_negative,
        "How long processes have between SIGTERM and SIGKILL when a person or a platform ends the job.",
    ),
    Variable(
        "host_timeout",
        "seconds",
        _positive,
        "How long a host may be silent before a launcher takes it for lost; 5 or more.",
    ),
    Variable(
        "stall_warning",
        "seconds",
        _not_negative,
        "When to warn of a slow collective; 0: never.",
        alias=Alias("HOROVOD_STALL_CHECK_TIME_SECONDS", _not_negative),
    ),
    Variable("transport", "auto or tcp", _one_of(*TRANSPORTS), "How ranks of one node move data."),
    Variable(
        "link_probe",
        "0 or 1",
        _flag,
        "Measure the network between nodes in `init()` and choose algorithms by it; rank 0's counts.",
    ),
    Variable("engine", "native, horovod or mpi", _one_of(*ENGINES), "Who moves data between the ranks."),
    Variable(
        "bucket_bytes",
        "bytes or auto",
        lambda text: None if text.lower() == "auto" else _count(text),
        "How many bytes of gradients are reduced together at most; by default, and with `auto`, what suits the link.",
        alias=Alias("HOROVOD_FUSION_THRESHOLD", lambda text: max(1, _whole(text))),
    ),
    Variable(
        "replica_check_steps",
        "number",
        _whole,
        "Every so many steps, and after 2, 4, 8 and so on, the ranks compare their weights; 0: never.",
    ),
    Variable(
        "timeline",
        "path",
        str,
        "Where rank 0 writes a trace of all ranks' operations.",
        alias=Alias("HOROVOD_TIMELINE", lambda text: None if text == "DYNAMIC" else text),
    ),
    Variable("failure_file", "path", str, "Where a worker leaves the record of its exception.", identity=True),
    Variable(
        "log_level",
        "level",
        _one_of(*LEVELS),
        "What to log: debug, info, warning or error.",
        alias=Alias("HOROVOD_LOG_LEVEL", _horovod_level),
    ),
    Variable("mlflow", "0 or 1", _flag, "Whether launchers tell MLflow of a job where its tracking URI is set."),
    Variable("library", "path", str, "Use this libtfcollective.so instead of the installed one."),
    Variable("nccl", "path", str, "The NCCL library to use for arrays on GPUs, instead of the one that is found."),
    Variable("cuda_driver", "path", str, "The CUDA driver to use instead of libcuda.so.1."),
    Variable(
        "gpu_kernels",
        "0 or 1",
        _flag,
        "Whether tensors on GPUs are reduced there; 0: TensorFlow copies them to the host. The same on all ranks.",
    ),
    Variable(
        "gpus_per_proc",
        "number",
        _whole,
        "How many GPUs the launcher gives each rank, by `CUDA_VISIBLE_DEVICES`; 0: ranks see them all.",
    ),
    Variable("share_gpus", "0 or 1", _flag, "Let several ranks of a node use one GPU (NCCL 2.30.3 or newer)."),
    Variable(
        "cache_dir",
        "path",
        str,
        "Where GPU kernels are kept that were compiled here; a private directory. By default `~/.cache/tfcollective`.",
    ),
    Variable("runtime_dir", "path", str, "Where the records of running jobs are kept; a private directory."),
)
_BY_FIELD = {row.field: row for row in VARIABLES}


@dataclass(frozen=True)
class Settings:
    """The values of :data:`VARIABLES`; what each means stands there."""

    coordinator: Endpoint | None = None
    key_file: str | None = None
    key_fd: int | None = None
    key: str | None = field(default=None, repr=False)
    insecure: bool = False
    encryption: str = "auto"
    job_id: str | None = None
    task: TaskKey | None = None
    evaluator: bool = False
    size: int | None = None
    max_restarts: int = 0
    restarts: int = 0
    rendezvous: Endpoint | None = None
    identity: str = "auto"
    ps_policy: str = "error"
    keep_tf_config: bool = False
    tf_config: str | None = None
    node_id: str | None = None
    bind_host: str | None = None
    op_timeout: float = 300.0
    start_timeout: float = 120.0
    grace: float = TIMING.grace
    host_timeout: float = TIMING.host_timeout
    stall_warning: float = 60.0
    transport: str = "auto"
    link_probe: bool = True
    engine: str = "native"
    bucket_bytes: int | None = None
    replica_check_steps: int = 1000
    timeline: str | None = None
    failure_file: str | None = None
    log_level: str = "warning"
    mlflow: bool = True
    library: str | None = None
    nccl: str | None = None
    cuda_driver: str | None = None
    gpu_kernels: bool = True
    gpus_per_proc: int = 0
    share_gpus: bool = False
    cache_dir: str | None = None
    runtime_dir: str | None = None

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads ``environ`` (default: this process's environment).

        Raises ConfigError that names the variable when a value cannot be used. A variable with our prefix that is
        not in the table is probably misspelt: it is logged.
        """
        source = environ_snapshot() if environ is None else environ
        known = {row.name for row in VARIABLES}
        for name in sorted(source):
            if name.startswith(PREFIX) and name not in known:
                _LOG.warning("the environment variable %s means nothing to tfcollective: is it misspelt?", name)
        return cls(**{row.field: _value(row, source) for row in VARIABLES})


def _value(row: Variable, source: Mapping[str, str]) -> Any:
    text = source.get(row.name, "").strip()
    if not text:
        return _alias_value(row, source)
    try:
        return row.parse(text)
    except ValueError as error:
        raise ConfigError(f"{row.name}={text!r} cannot be used: {error}") from error


def _alias_value(row: Variable, source: Mapping[str, str]) -> Any:
    """What Horovod's variable says, else the default. One that cannot be used is no reason to stop: it is not ours."""
    text = "" if row.alias is None else source.get(row.alias.name, "").strip()
    if row.alias is None or not text:
        return row.default
    try:
        return row.alias.parse(text)
    except ValueError as error:
        _LOG.warning("%s=%r has no effect here: %s", row.alias.name, text, error)
        return row.default


def variable(field: str) -> str:
    """The name in the environment of a field of :class:`Settings`."""
    return _BY_FIELD[field].name


def identity_variables() -> tuple[str, ...]:
    """The names in the environment that tell a process who it is in which job."""
    return tuple(row.name for row in VARIABLES if row.identity)


def environ_snapshot() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)


@contextmanager
def first_on_path(directory: str) -> Iterator[None]:
    """While it is open, what is started from here finds programs in ``directory`` before others of their names."""
    before = os.environ.get("PATH")
    os.environ["PATH"] = os.pathsep.join([directory, *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = before


def hide_tf_config() -> None:
    """Takes TF_CONFIG out of this process's environment, so that Estimator and tf.distribute do not act on it, and
    keeps it where the next :meth:`Settings.load` finds it."""
    text = os.environ.pop(TF_CONFIG, None)
    if text is not None:
        os.environ[variable("tf_config")] = text


def markdown_table() -> str:
    """The table of variables for the reference documentation."""
    rows = ["| variable | value | default | meaning |", "|---|---|---|---|"]
    for row in VARIABLES:
        default = "" if row.default is None else f"`{int(row.default) if row.kind == '0 or 1' else row.default}`"
        other = "" if row.alias is None else f" Also `{row.alias.name}`."
        rows.append(f"| `{row.name}` | {row.kind} | {default} | {row.doc}{other} |")
    return "\n".join(rows) + "\n"
