"""``tfcollective agent``: what launchers start on a node."""

from __future__ import annotations

import click

__all__ = ["agent"]


@click.command(
    hidden=True,
    epilog="""\b
Examples:
  a launcher runs this; it writes one line of JSON to its stdin and keeps that open""",
)
def agent() -> int:
    """Runs the processes of one node, as its launcher says on stdin."""
    from tfcollective.agent.main import main

    return main()
