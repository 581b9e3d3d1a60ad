"""There is one lab of network namespaces a machine: tests that need it take turns."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tfcollective_bench import netlab

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
    reason="network namespaces need root, ip and tc",
)


@contextlib.contextmanager
def the_lab():
    """While it is open, no other test has the lab; skips the test when somebody else has one."""
    with (Path(tempfile.gettempdir()) / "tfcollective-tests-lab.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not netlab.current_state().empty:
            pytest.skip("there is a lab already, perhaps in use")
        yield
