"""``tfcollective job``: what batch scripts and manifests call, where platforms start the launcher of a job."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from tfcollective._base.options import PATH
from tfcollective._cli.command import resolve_command
from tfcollective._cli.run import run_spec
from tfcollective._launch.plan.hosts import read_hostfile
from tfcollective._launch.plan.job_file import read_job
from tfcollective._launch.plan.spec import OPTIONS

_MOST_BYTES = 64 << 20


@click.command(
    hidden=True,
    epilog="""\b
Examples:
  tfcollective job --launcher local '{"command": ["python", "train.py"], "num_proc": 2}'""",
)
@click.option("--launcher", required=True, metavar="NAME", help="Launcher that runs it.")
@click.option("--hostfile", type=click.Path(), metavar="F", help="File with its hosts, which are known only here.")
@click.argument("text", required=False)
def job(launcher: str, hostfile: str | None, text: str | None) -> int:
    """Runs the job that TEXT, or standard input, describes as JSON."""
    spec = read_job(sys.stdin.buffer.read(_MOST_BYTES) if text is None else text)
    if hostfile is not None:
        spec = replace(spec, hosts=read_hostfile(Path(hostfile)))
    here = {name: one.read(name, getattr(spec, name)) for name, one in OPTIONS.items() if one.kind is PATH}
    return run_spec(launcher, replace(spec, **here, command=resolve_command(spec.command, None)))
