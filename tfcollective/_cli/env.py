"""``tfcollective env``: how init() would read an environment; starts nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from tfcollective._base.errors import ConfigError
from tfcollective._base.settings import TF_CONFIG, Settings, environ_snapshot, variable
from tfcollective._base.tasks import PS_POLICIES
from tfcollective._cli.config_file import read_text
from tfcollective._control.identity import Identity, discover, key_source

_NO_RANK = "none: outside the world"


@click.command(
    short_help="Shows which rank TF_CONFIG, MPI or SLURM give a process.",
    epilog="""\b
Examples:
  tfcollective env
  tfcollective env --tf-config '{"cluster": {"chief": ["h0:2222"], "worker": ["h1:2222"]}, "task": {"type": "worker", "index": 0}}'
  tfcollective env --tf-config @tf_config.json --json

\b
Exit code: 0 when init() would accept the environment, 64 when it would raise an error.""",  # noqa: E501  the example has to stay on one line
)
@click.option("--tf-config", metavar="JSON|@FILE", help="Read this TF_CONFIG instead of the environment.")
@click.option("--ps-policy", type=click.Choice(PS_POLICIES), help="Let a ps process fail, or exit with 0. [error]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a table.")
def env(tf_config: str | None, ps_policy: str | None, as_json: bool) -> int:
    """Shows the rank that init() would give this process.

    It reads TF_CONFIG and the variables of MPI, SLURM, SageMaker, Vertex AI, Kubernetes and of tfcollective's launcher.
    It starts no process and opens no connection.
    """
    environ = _environ(tf_config, ps_policy)
    settings = Settings.load(environ)
    identity = discover(settings, environ)
    report = _report(identity, settings)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0 if report["problem"] is None else 64


def _environ(tf_config: str | None, ps_policy: str | None) -> dict[str, str]:
    environ = environ_snapshot()
    if tf_config is not None:
        environ[TF_CONFIG] = _text(tf_config)
        environ[variable("identity")] = "tf_config"
    if ps_policy is not None:
        environ[variable("ps_policy")] = ps_policy
    return environ


def _text(given: str) -> str:
    return read_text("--tf-config", given[1:]) if given.startswith("@") else given


def _report(identity: Identity, settings: Settings) -> dict[str, object]:
    ranks = {str(task): rank for rank, task in enumerate(identity.trainers)}
    task = str(identity.task)
    key, problem = _key(identity, settings)
    return {
        "source": identity.source,
        "task": task,
        # A launcher's coordinator gives the rank when all have come.
        "rank": ranks.get(task, 0 if identity.source == "single" else None),
        "size": identity.world_size,
        "job_id": identity.job_id,
        "rendezvous": None if identity.coordinator is None else str(identity.coordinator),
        "starts_coordinator": identity.starts_coordinator,
        "key": key,
        "trainers": list(ranks),
        "hosts": list(identity.hosts),
        "notes": list(identity.notes),
        "problem": problem,
    }


def _key(identity: Identity, settings: Settings) -> tuple[str | None, str | None]:
    """Returns the source of the job key, and what is wrong with it."""
    if identity.coordinator is None:
        return None, None
    try:
        return key_source(identity, settings).value, None
    except ConfigError as error:
        return None, str(error)


def _print(report: Mapping[str, object]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, text in _rows(report):
        table.add_row(name, escape(text))
    Console(highlight=False).print(table)


def _rows(report: Mapping[str, object]) -> list[tuple[str, str]]:
    task, trainers = report["task"], report["trainers"]
    outside = "given by the launcher's coordinator" if report["source"] == "launcher" else _NO_RANK
    rows = [
        ("source", str(report["source"])),
        ("task", str(task)),
        ("rank", outside if report["rank"] is None else str(report["rank"])),
        ("size", str(report["size"])),
    ]
    if report["rendezvous"] is not None:
        opens = " (this process opens it)" if report["starts_coordinator"] else ""
        rows += [("rendezvous", f"{report['rendezvous']}{opens}"), ("job key", _key_words(report))]
    if isinstance(trainers, list):
        rows += [(f"rank {rank}", str(one)) for rank, one in enumerate(trainers)]
    notes = report["notes"]
    if isinstance(notes, list):
        rows += [("note", str(note)) for note in notes]
    if report["problem"] is not None:
        rows.append(("problem", str(report["problem"])))
    return rows


def _key_words(report: Mapping[str, object]) -> str:
    return {
        "given": "given by a file or a variable",
        "user": "this user's own: all ranks are on this machine",
        "none": f"none, as {variable('insecure')} asks",
    }.get(str(report["key"]), "missing")
