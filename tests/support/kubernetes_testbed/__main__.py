"""Runs a command with KUBECONFIG of a cluster that lasts as long as it. Its pods see this directory as /app, and begin
there."""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from kubernetes_testbed import Cluster, missing, this_python


def main() -> int:
    command = sys.argv[1:]
    reason = missing()
    if not command or reason:
        print(f"error: {reason}" if reason else __doc__, file=sys.stderr)
        return 64
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was made is taken away
    image = replace(this_python(app=Path.cwd()), workdir="/app")
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), image) as cluster:
        environ = os.environ | {"KUBECONFIG": str(cluster.kubeconfig), "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
        return subprocess.run(command, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
