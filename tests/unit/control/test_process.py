import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tfcollective._base.errors import CoordinatorError
from tfcollective._base.tasks import workers
from tfcollective._base.timing import TIMING
from tfcollective._control.serve.process import Child, CoordinatorConfig, CoordinatorProcess, introduce
from tfcollective._control.wire.protocol import ServerOptions

CONFIG = CoordinatorConfig(ServerOptions("j", b"k" * 32, workers(1), 0.01), 1, "warning", "/tmp", ("x",))


def test_an_unread_configuration_ends_the_wait_too():
    options = replace(CONFIG.options, tasks=workers(20_000))
    timing = replace(TIMING, agent_start=0.2, coordinator=0.01)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    try:
        with pytest.raises(CoordinatorError, match="has not begun to listen within"):
            introduce(Child(process, process.stdout), replace(CONFIG, options=options), timing)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit(3)", "ended with exit code 3 before it listened"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL before it listened"),
        ("import time; time.sleep(600)", r"has not begun to listen within 0\.01 s: is this machine too busy"),
    ],
)
def test_a_coordinator_that_fails_to_start_explains(program, message):
    limit = 0.01 if "sleep" in program else 120.0
    timing = replace(TIMING, agent_start=limit, coordinator=limit)
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    try:
        with pytest.raises(CoordinatorError, match=message):
            introduce(Child(process, process.stdout), CONFIG, timing)
    finally:
        process.kill()
        process.communicate()


def test_output_of_sitecustomize_is_not_the_answer(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("print('the settings of this site', flush=True)\n")
    options = ServerOptions("j", b"k" * 32, workers(1), 60.0, bind_host="127.0.0.1")
    config = CoordinatorConfig(options, os.getpid(), "warning", str(tmp_path), ("x",))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        child = CoordinatorProcess.start(config, dict(os.environ))
    try:
        assert child.endpoint.port > 0
    finally:
        child.close()
