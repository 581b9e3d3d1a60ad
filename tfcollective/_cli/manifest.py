"""``tfcollective manifest``: a job as YAML for Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from tfcollective._base.errors import LaunchError
from tfcollective._base.exit_codes import ExitCode
from tfcollective._base.options import HEADINGS
from tfcollective._cli.command import command_in_image
from tfcollective._cli.platforms import PLATFORMS
from tfcollective._cli.run import TYPED, RunCommand, run
from tfcollective._cli.run_options import RUN_OPTIONS, job_spec
from tfcollective._launch.launcher import ManifestLauncher, find_launcher
from tfcollective._launch.plan.spec import MANIFEST_DEFAULTS

_PLATFORM = "kubernetes"
# Of `tfcollective run`: hosts, clusters and the terminal are the cluster's business.
_LEFT_OUT = frozenset(
    {
        *("emit_tf_config", "engine", "discovery", "mpi", "mpi_args", "print_plan", "check_build", "cwd"),
        *("slots", "blacklist", "cooldown_range"),
        *("kubeconfig", "context", "direct", "allocation_timeout", "detach"),
    }
)


def _launcher() -> ManifestLauncher:
    launcher = find_launcher(_PLATFORM)
    if not isinstance(launcher, ManifestLauncher):
        raise LaunchError(f"the launcher {_PLATFORM!r} prints no manifests")
    return launcher


_OF_RUN = ("Processes", "Failures", "Output", "Performance", "Compatibility")
_OPTIONS = (
    *(one for one in PLATFORMS[_PLATFORM].values() if one.heading not in HEADINGS),
    *(one for one in RUN_OPTIONS if one.heading in _OF_RUN),
)


@click.command(
    cls=RunCommand,
    params=[one for one in _OPTIONS if one.name not in _LEFT_OUT],
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    short_help="Prints a job as YAML for Kubernetes.",
    epilog="""\b
Examples:
  tfcollective manifest -np 4 --image registry.example/train:1.0 -- python train.py
  tfcollective manifest -np 4 --image registry.example/train:1.0 --cpus 4 --memory 8Gi --gpus 1 \\
    --volume pvc/data:/data:ro -- python train.py | kubectl apply -f -
  tfcollective manifest --kind jobset -np 4 --min-np 2 --max-np 8 --image registry.example/train:1.0 -- python train.py

\b
Exit code: 0; 64 for what Kubernetes would refuse.""",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@click.pass_context
def manifest(context: click.Context, /, command: Sequence[str], **options: Any) -> int:
    """Prints a job that runs COMMAND on N ranks, as YAML that `kubectl apply -f -` takes.

    The same arguments give the same text. No key is in it: the text names a Secret, and says how to make it. A job of
    fixed size runs a rank in each pod. What needs a launcher (--min-np, --procs-per-pod, --task-spec and others) gets
    one in a pod of its own, with agents in the others.
    """
    words = command_in_image(command, options["module"])
    options = {**_defaults_of_run(), **options, "launcher": _PLATFORM}
    options.update({name: value for name, value in MANIFEST_DEFAULTS.items() if options[name] is None})
    _, spec = job_spec(options, words, in_image=True)
    click.echo(_launcher().manifest(spec, ("tfcollective", "manifest", *context.meta[TYPED])), nl=False)
    return ExitCode.OK


def _defaults_of_run() -> Mapping[str, Any]:
    return {name: value for name, value in run.make_context("run", ["true"]).params.items() if name != "command"}
