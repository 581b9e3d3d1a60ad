"""Settings: the one reader of the environment.

Every environment variable of tfcollective is one field of :class:`Settings`, and one row of :data:`VARIABLES`. Entry
points call :meth:`Settings.load` once; from there on settings travel as a value.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfcollective._base.errors import ConfigError
from tfcollective._base.log import HOROVOD_LEVELS, LEVELS, get_logger
from tfcollective._base.options import Kind, choice, count, seconds
from tfcollective._base.private_directory import runtime_directory
from tfcollective._base.tasks import PS_POLICIES, TaskKey
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import Endpoint, PortRange

PREFIX = "TFCOLLECTIVE_"
TF_CONFIG = "TF_CONFIG"
TRANSPORTS = ("auto", "tcp")
BATCH_NORMS = ("global", "local")
# Who moves the data: see tfcollective._runtime.engines.
ENGINES = ("native", "horovod", "mpi")
REPLICA_CHECKS = ("error", "warn", "resync")
# Who may tell a process who it is, in order of precedence: see tfcollective._control.identity.discovery.
IDENTITIES = ("auto", "launcher", "tf_config", "vertex", "sagemaker", "mpi", "slurm", "kubernetes", "single")
_LOG = get_logger(__name__)


@dataclass(frozen=True)
class Alias:
    """A variable of Horovod's that means the same: it counts where ours is not set. ``parse`` as in Variable."""

    name: str
    parse: Callable[[str], Any]


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    Attributes:
        field: the attribute of :class:`Settings` that holds its value.
        kind: what its text looks like, for the documentation.
        parse: text -> value; raises ValueError (ConfigError is one) with a reason.
        doc: one sentence.
        identity: True if it says who a process is in its job; a job that is started inside another has its own.
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


def _read(kind: Kind) -> Callable[[str], Any]:
    """Reads a text as the value of an option of this kind."""

    def parse(text: str) -> Any:
        value = kind.read(text)
        problem = kind.problem(value)
        if problem is not None:
            raise ValueError(problem)
        return value

    return parse


def _flag(text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true", "no", "yes"):
        raise ValueError("expected 0 or 1")
    return text.lower() in ("1", "true", "yes")


_count, _whole = _read(count(1)), _read(count(0))
_Kind = tuple[str, Callable[[str], Any]]  # what the text of a variable looks like, and what reads it
_FLAG: _Kind = ("0 or 1", _flag)
_NUMBER: _Kind = ("number", _whole)
_SECONDS: _Kind = ("seconds", _read(seconds()))
_SECONDS_OR_0: _Kind = ("seconds", _read(seconds(above_zero=False)))
_TEXT: _Kind = ("text", str)
_PATH: _Kind = ("path", str)
_ENDPOINT: _Kind = ("HOST:PORT", Endpoint.parse)


def _choice(*values: str) -> _Kind:
    return f"{', '.join(values[:-1])} or {values[-1]}", _read(choice(*values))


def _row(
    kind: _Kind,
    doc: str,
    default: Any = None,
    *,
    identity: bool = False,
    alias: Alias | str | None = None,
    repr: bool = True,  # noqa: A002  as for a field
) -> Any:
    """A field of :class:`Settings`, and its row of :data:`VARIABLES`; an alias that is a text is read as it is."""
    other = Alias(alias, kind[1]) if isinstance(alias, str) else alias
    return dataclasses.field(
        default=default, repr=repr, metadata={"row": Variable("", *kind, doc, identity=identity, alias=other)}
    )


@dataclass(frozen=True)
class Settings:
    """The settings: what each variable looks like, how it is read, what it means, and its default."""

    coordinator: Endpoint | None = _row(_ENDPOINT, "Where the job's coordinator listens.", identity=True)
    key_file: str | None = _row(_PATH, "A file of mode 0600 that holds the job key in hexadecimal.", identity=True)
    key_fd: int | None = _row(_NUMBER, "An inherited descriptor of such a file, instead of its path.", identity=True)
    key: str | None = _row(
        ("hexadecimal", str), "The job key itself, for example from a Kubernetes Secret.", identity=True, repr=False
    )
    insecure: bool = _row(_FLAG, "Without a launcher: do without a job key. Anybody can join the job.", False)
    job_id: str | None = _row(_TEXT, "The name of the job.", identity=True)
    task: TaskKey | None = _row(
        ("TYPE:INDEX", TaskKey.parse), "The task of this process, for example worker:3.", identity=True
    )
    evaluator: bool = _row(_FLAG, "Whether the job has an evaluator.", False, identity=True)
    size: int | None = _row(("number", _count), "The number of processes that take part in collectives.", identity=True)
    elastic: bool = _row(
        _FLAG, "Whether the job continues when ranks come and go; set by the launcher.", False, identity=True
    )
    newcomer: int | None = _row(
        _NUMBER, "Of a rank that has come to a job which trains already: its slot on its node.", identity=True
    )
    max_restarts: int = _row(_NUMBER, "How often the launcher starts all ranks again when one fails.", 0, identity=True)
    restarts: int = _row(_NUMBER, "How often it has.", 0, identity=True)
    rendezvous: Endpoint | None = _row(
        _ENDPOINT, "Without a launcher: where rank 0's coordinator listens.", identity=True
    )
    identity: str = _row(
        ("name", _read(choice(*IDENTITIES))),
        "Who says which rank this is: " + ", ".join(IDENTITIES) + ".",
        "auto",
        identity=True,
    )
    ps_policy: str = _row(
        _choice(*PS_POLICIES),
        "What `init()` does in a ps process: raise an error, or end the process with exit code 0.",
        "error",
    )
    keep_tf_config: bool = _row(
        _FLAG,
        "Leave `TF_CONFIG` in the environment; else `init()` takes it out, so that TensorFlow does not act on it.",
        False,
    )
    tf_config: str | None = _row(
        ("JSON", str), "What `TF_CONFIG` was before `init()` took it out of the environment.", identity=True
    )
    node_id: str | None = _row(_TEXT, "Names this node; processes with equal node ids share memory.", identity=True)
    bind_host: str | None = _row(
        ("address", str), "The address of the interface that peers connect to; by default the one that leads to them."
    )
    port_range: PortRange | None = _row(
        ("LOW-HIGH", PortRange.parse),
        "The ports that ranks listen on, and a launcher's coordinator; by default any free ones.",
    )
    op_timeout: float = _row(_SECONDS, "How long a collective may take.", 300.0, alias="HOROVOD_GLOO_TIMEOUT_SECONDS")
    start_timeout: float = _row(
        _SECONDS, "How long the ranks wait for each other in `init()`.", 120.0, alias="HOROVOD_START_TIMEOUT"
    )
    grace: float = _row(
        _SECONDS_OR_0,
        "How long processes have between SIGTERM and SIGKILL when a person or a platform ends the job.",
        TIMING.grace,
    )
    host_timeout: float = _row(
        _SECONDS, "How long a host may be silent before a launcher takes it for lost; 5 or more.", TIMING.host_timeout
    )
    elastic_timeout: float = _row(
        _SECONDS,
        "How long the ranks of an elastic job wait for others when too few are left.",
        600.0,
        alias="HOROVOD_ELASTIC_TIMEOUT",
    )
    stall_warning: float = _row(
        _SECONDS_OR_0,
        "When to warn of a slow collective, and to end a job whose ranks all wait for each other; 0: never.",
        10.0,
        alias="HOROVOD_STALL_CHECK_TIME_SECONDS",
    )
    transport: str = _row(_choice(*TRANSPORTS), "How ranks of one node move data.", "auto")
    link_probe: bool = _row(
        _FLAG, "Measure the network between nodes in `init()` and choose algorithms by it; rank 0's counts.", True
    )
    engine: str = _row(_choice(*ENGINES), "Who moves data between the ranks.", "native")
    bucket_bytes: int | None = _row(
        ("bytes or auto", lambda text: None if text.lower() == "auto" else _count(text)),
        "How many bytes of gradients are reduced together at most; by default, and with `auto`, what suits the link.",
        alias=Alias("HOROVOD_FUSION_THRESHOLD", lambda text: max(1, _whole(text))),
    )
    replica_check_steps: int = _row(
        _NUMBER, "Every so many steps, and after 2, 4, 8 and so on, the ranks compare their weights; 0: never.", 1000
    )
    replica_check: str = _row(
        _choice(*REPLICA_CHECKS),
        "Weights that differ by more than rounding, which is taken back: `error`, `warn` in one line, or `resync`, "
        "after which all ranks have rank 0's weights and optimizer state.",
        "error",
    )
    local_training: bool = _row(
        _FLAG, "Let ranks train without reducing gradients, each a model of its own; otherwise that is an error.", False
    )
    nan_check: bool = _row(
        _FLAG,
        "Look at this rank's gradients before each reduction: which rank, step and variable NaN begins with.",
        False,
    )
    average_statistics: bool = _row(
        _FLAG,
        "Whether `fit` averages the moving statistics of `BatchNormalization` over the ranks: at the end of each "
        "epoch, and before validation.",
        True,
    )
    data_parallel: bool = _row(
        _FLAG, "Set by `--data-parallel`: Keras's own `fit`, `evaluate` and `predict` divide their work.", False
    )
    batch_norm: str = _row(
        _choice(*BATCH_NORMS),
        "Where Keras's `fit` divides batches: `BatchNormalization` over the whole batch, or over each rank's part.",
        "global",
    )
    fit_checks: bool = _row(
        _FLAG,
        "Whether the ranks compare, in `fit`, their data, seeds, files and weights without gradients; rank 0 warns.",
        True,
    )
    timeline: str | None = _row(
        _PATH,
        "Where rank 0 writes a trace of all ranks' operations.",
        alias=Alias("HOROVOD_TIMELINE", lambda text: None if text == "DYNAMIC" else text),
    )
    failure_file: str | None = _row(_PATH, "Where a worker leaves the record of its exception.", identity=True)
    beat_dir: str | None = _row(_PATH, "Where a worker leaves its heartbeats for its node's agent.", identity=True)
    row_source: Endpoint | None = _row(
        _ENDPOINT, "Where a rank on Spark gets its rows, from the task that holds its agent."
    )
    log_level: str = _row(
        ("level", _read(choice(*LEVELS))),
        "What to log: debug, info, warning or error.",
        "warning",
        alias=Alias("HOROVOD_LOG_LEVEL", _read(choice(*LEVELS, others=HOROVOD_LEVELS))),
    )
    mlflow: bool = _row(_FLAG, "Whether launchers tell MLflow of a job where its tracking URI is set.", True)
    library: str | None = _row(_PATH, "Use this libtfcollective.so instead of the installed one.")
    nccl: str | None = _row(_PATH, "The NCCL library to use for arrays on GPUs, instead of the one that is found.")
    cuda_driver: str | None = _row(_PATH, "The CUDA driver to use instead of libcuda.so.1.")
    gpu_kernels: bool = _row(
        _FLAG,
        "Whether tensors on GPUs are reduced there; 0: TensorFlow copies them to the host. The same on all ranks.",
        True,
    )
    gpus_per_proc: int = _row(
        _NUMBER, "How many GPUs the launcher gives each rank, by `CUDA_VISIBLE_DEVICES`; 0: ranks see them all.", 0
    )
    share_gpus: bool = _row(_FLAG, "Let several ranks of a node use one GPU (NCCL 2.30.3 or newer).", False)
    cache_dir: str | None = _row(
        _PATH,
        "Where GPU kernels are kept that were compiled here; a private directory. By default `~/.cache/tfcollective`.",
    )
    runtime_dir: str | None = _row(_PATH, "Where the records of running jobs are kept; a private directory.")

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads ``environ`` (default: this process's environment).

        Raises ConfigError that names the variable when a value cannot be used. A variable with our prefix that is
        not in the table is probably misspelt: it is logged, once in a process.
        """
        source = environ_snapshot() if environ is None else environ
        _note_misspelt(source)
        return cls(**{row.field: _value(row, source) for row in VARIABLES})

    def jobs_directory(self) -> Path:
        """The private directory of this user's running jobs. Raises ConfigError when it cannot be used."""
        return runtime_directory(self.runtime_dir, os.environ, tempfile.gettempdir)


VARIABLES: tuple[Variable, ...] = tuple(
    replace(one.metadata["row"], field=one.name) for one in dataclasses.fields(Settings)
)
_BY_FIELD = {row.field: row for row in VARIABLES}


_noted: set[str] = set()
# Kubernetes gives every container the address of a service that is called tfcollective.
_OF_A_SERVICE = re.compile(PREFIX + r"(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


def _note_misspelt(source: Mapping[str, str]) -> None:
    known = [row.name for row in VARIABLES]
    for name in sorted(name for name in source if name.startswith(PREFIX) and name not in {*known, *_noted}):
        _noted.add(name)
        if _OF_A_SERVICE.fullmatch(name):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else "is it misspelt?"
        _LOG.warning("the environment variable %s means nothing to tfcollective: %s", name, hint)


def _value(row: Variable, source: Mapping[str, str]) -> Any:
    text = source.get(row.name, "").strip()
    if not text:
        return _alias_value(row, source)
    try:
        return row.parse(text)
    except ValueError as error:
        raise ConfigError(f"{row.name}={text!r} cannot be used: {error}") from error


def _alias_value(row: Variable, source: Mapping[str, str]) -> Any:
    """Returns the value of Horovod's variable, else the default. An unusable value is no error: the variable is not
    ours.
    """
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


def without_outer_job(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without what it says of a job, for the processes of another one: where an agent has written it, this
    is inside a rank of that job."""
    outer = {TF_CONFIG, *identity_variables()}
    if variable("task") in environ:
        outer.add(variable("timeline"))  # the outer job writes that file
    return {name: value for name, value in environ.items() if name not in outer}


def environ_snapshot() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)


@contextmanager
def first_on_path(directory: str) -> Iterator[None]:
    """Puts ``directory`` first on PATH while the context is open, for processes that are started from here."""
    before = os.environ.get("PATH")
    with external_variable("PATH", os.pathsep.join([directory, *([before] if before else [])])):
        yield


@contextmanager
def external_variable(name: str, value: str) -> Iterator[None]:
    """Sets a variable of this process's environment, which is not ours, while the context is open."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def set_environment(environ: Mapping[str, str]) -> None:
    """Replaces the environment of this process; variables that are not given are removed."""
    os.environ.clear()
    os.environ.update(environ)


def hide_tf_config() -> None:
    """Takes TF_CONFIG out of this process's environment, so that Estimator and tf.distribute do not act on it, and
    keeps it where the next :meth:`Settings.load` finds it."""
    text = os.environ.pop(TF_CONFIG, None)
    if text is not None:
        os.environ[variable("tf_config")] = text


def set_tf_config(text: str) -> None:
    """Sets TF_CONFIG as a user would have set it: ``init()`` reads it and takes it away again."""
    os.environ[TF_CONFIG] = text


def hide_data_parallel() -> None:
    """Takes away what makes Keras divide its work: processes that this one starts are no ranks."""
    os.environ.pop(variable("data_parallel"), None)


def markdown_table() -> str:
    """The table of variables for the reference documentation."""
    rows = ["| variable | value | default | meaning |", "|---|---|---|---|"]
    for row in VARIABLES:
        default = "" if row.default is None else f"`{int(row.default) if row.kind == '0 or 1' else row.default}`"
        other = "" if row.alias is None else f" Also `{row.alias.name}`."
        rows.append(f"| `{row.name}` | {row.kind} | {default} | {row.doc}{other} |")
    return "\n".join(rows) + "\n"
