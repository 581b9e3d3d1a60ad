"""Serves as Horovod-Gloo's rendezvous: ``python -m ...horovod_rendezvous ADDRESS PORT HOST:SLOTS,...``.

The key-value server at which Horovod-Gloo's ranks meet, as ``horovodrun`` starts it; here on an address and a port
that are given, so that it can serve hosts that only a bridge connects. Needs Horovod; ends when it is ended.
"""

from __future__ import annotations

import sys
from typing import Any

from tfcollective_bench.training.task import mark_line

__all__ = ["main"]


def main() -> int:
    """Serves until a signal ends it."""
    address, port, hosts = sys.argv[1:]
    server = _make_server((address, int(port)), hosts)
    sys.stdout.write(mark_line("ready") + "\n")
    sys.stdout.flush()
    server.serve_forever()
    return 0


def _make_server(address: tuple[str, int], hosts: str) -> Any:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    slots = parse_hosts(hosts)
    server = RendezvousHTTPServer(address, RendezvousHandler, False)
    server.init(get_host_assignments(slots, sum(host.slots for host in slots)))
    return server


if __name__ == "__main__":
    sys.exit(main())
