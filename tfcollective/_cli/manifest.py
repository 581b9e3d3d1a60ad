"""``tfcollective manifest``: a job as YAML for Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from tfcollective._base.errors import LaunchError
from tfcollective._base.exit_codes import ExitCode
from tfcollective._cli.command import command_in_image
from tfcollective._cli.groups import GroupedOption, group, option
from tfcollective._cli.kubernetes_options import JOB_OPTIONS
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
    }
)


class _Kind(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic since click 8.5
    """One of the launcher's own kinds, which is asked when they are needed."""

    name = "kind"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """See :class:`click.ParamType`."""
        del param, ctx
        return f"[{'|'.join(_launcher().kinds)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See :class:`click.ParamType`."""
        return click.Choice(_launcher().kinds).convert(value, param, ctx)


def _launcher() -> ManifestLauncher:
    launcher = find_launcher(_PLATFORM)
    if not isinstance(launcher, ManifestLauncher):
        raise LaunchError(f"the launcher {_PLATFORM!r} prints no manifests")
    return launcher


_SECTIONS = ("Processes", "Failures", "Output", "Performance", "Compatibility")
_OWN: tuple[GroupedOption, ...] = (
    *group(
        "Kubernetes",
        option("--kind", type=_Kind(), help="What the manifest consists of. [job]"),
        option("--key-secret", metavar="NAME", help="Secret that has the job key. [JOB-NAME-key]"),
    ),
)
_OF_RUN = tuple(one for one in RUN_OPTIONS if one.heading in _SECTIONS and one.name not in _LEFT_OUT)


@click.command(
    cls=RunCommand,
    params=[*_OWN, *JOB_OPTIONS, *_OF_RUN],
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
    launcher = _launcher()
    settings = {"kind": options["kind"] or launcher.kinds[0], "key_secret": options["key_secret"]}
    click.echo(launcher.manifest(spec, settings, ("tfcollective", "manifest", *context.meta[TYPED])), nl=False)
    return ExitCode.OK


def _defaults_of_run() -> Mapping[str, Any]:
    return {name: value for name, value in run.make_context("run", ["true"]).params.items() if name != "command"}
