"""``tfcollective agent``: the processes of one node."""

from __future__ import annotations

import socket
from pathlib import Path

import click

from tfcollective._base.errors import ConfigError
from tfcollective._base.exit_codes import ExitCode
from tfcollective._base.settings import Settings, environ_snapshot, variable
from tfcollective._base.topology import Endpoint
from tfcollective._control.identity.keys import read_key
from tfcollective._control.identity.mpi import open_mpi_place


@click.command(
    short_help="Runs the ranks of one host of a job on several hosts.",
    epilog="""\b
Examples:
  tfcollective agent --join 10.0.0.1:29477 --key-file job.key
  srun tfcollective agent --join "$LAUNCHER:29477" --key-file "$PWD/job.key"
  mpirun -H host1,host2 tfcollective agent --join 10.0.0.1:29477 --key-file job.key""",
)
@click.option("--join", metavar="HOST:PORT", help="Address of the launcher's coordinator.")
@click.option("--key-file", type=click.Path(), metavar="F", help="File with the job key that the launcher wrote.")
@click.option("--slots", type=click.IntRange(min=1), metavar="N", help="Ranks on this host. [an equal share]")
@click.option("--network-interface", multiple=True, metavar="NAME|CIDR", help="Interface to use; may be repeated.")
@click.option("--name", metavar="NAME", help="Name of this host in reports. [its host name]")
@click.option(
    "--start-timeout", type=float, metavar="S", help=f"Limit for the launcher to listen. [{Settings.start_timeout:g}]"
)
@click.option("--mpi", is_flag=True, help="Run one rank: the one of this process of mpirun.")
def agent(
    join: str | None,
    key_file: str | None,
    mpi: bool,
    slots: int | None,
    network_interface: tuple[str, ...],
    name: str | None,
    start_timeout: float | None,
) -> int:
    """Runs the ranks of this host for a job that was started with `tfcollective run --wait-for-agents N`.

    The agent waits until the coordinator listens and the key file exists. It ends when its ranks have ended. When the
    launcher is gone, it stops its ranks.
    """
    if join is None:
        raise ConfigError(
            "an agent needs --join HOST:PORT and --key-file F: tfcollective run --wait-for-agents says which"
        )
    from tfcollective._launch.agent.main import serve
    from tfcollective._launch.agent.node import wait_for_key
    from tfcollective._launch.agent.protocol import NodeSettings
    from tfcollective._launch.plan.spec import OPTIONS

    coordinator = _endpoint(join)  # before the wait for the key
    settings = Settings.load()
    timeout = settings.start_timeout if start_timeout is None else start_timeout
    OPTIONS["start_timeout"].check("start_timeout", timeout)
    key = read_key(settings) if key_file is None else wait_for_key(Path(key_file), timeout)
    if key is None:
        raise ConfigError(
            f"--join needs the job key: --key-file F, as the launcher says, or {variable('key')} in the environment"
        )
    code = serve(
        NodeSettings(
            coordinator=str(coordinator),
            key=key.hex(),
            name=name or socket.gethostname(),
            network_interfaces=network_interface,
            slots=slots,
            timeout=timeout,
            mpi=open_mpi_place(environ_snapshot()) if mpi else None,
        ),
        None if key_file is None else Path(key_file),
    )
    # mpirun holds a job of which a process has failed for another minute, and no launcher is left to end it.
    return ExitCode.OK if mpi and code == ExitCode.LOST else code


def _endpoint(text: str) -> Endpoint:
    try:
        return Endpoint.parse(text)
    except ConfigError as error:
        raise ConfigError(f"--join: {error}") from error
