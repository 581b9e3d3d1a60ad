"""A machine has one test bed of network namespaces: tests that need it take turns."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tfcollective_bench import testbed

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
    reason="network namespaces need root, ip and tc",
)


@contextlib.contextmanager
def the_testbed():
    """While it is open, no other test has the test bed; skips the test when another process has one."""
    with (Path(tempfile.gettempdir()) / "tfcollective-tests-testbed.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not testbed.current_state().empty:
            pytest.skip("there is a test bed already, perhaps in use")
        yield
