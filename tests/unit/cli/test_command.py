import os
import sys

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._cli.command import resolve_command


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    executable = tmp_path / "tool.py"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    (tmp_path / "plain.py").write_text("print(1)\n")
    (tmp_path / "plain.py").chmod(0o755)  # in a checkout with mode 755, or on a file system without modes
    (tmp_path / "bin").mkdir()
    for name, text in (("installed.py", "#!/usr/bin/env python3\n"), ("other.py", "")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)


@pytest.mark.parametrize(
    ("command", "module", "expected"),
    [
        (("python", "train.py", "-x"), None, (sys.executable, "train.py", "-x")),
        (("python3", "-c", "1"), None, (sys.executable, "-c", "1")),
        (("python", "-m", "nowhere"), None, (sys.executable, "-m", "nowhere")),
        (("train.py", "a"), None, (sys.executable, "train.py", "a")),
        (("./tool.py",), None, ("./tool.py",)),
        (("tool.py",), None, (sys.executable, "tool.py")),
        (("plain.py", "a"), None, (sys.executable, "plain.py", "a")),
        (("./plain.py", "a"), None, (sys.executable, "./plain.py", "a")),
        (("installed.py",), None, ("installed.py",)),
        (("sh", "-c", "exit"), None, ("sh", "-c", "exit")),
        (("--flag",), "package.train", (sys.executable, "-m", "package.train", "--flag")),
        ((sys.executable, "train.py"), None, (sys.executable, "train.py")),
    ],
)
def test_commands(command, module, expected):
    assert resolve_command(command, module) == expected


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ((), "the command to run is missing"),
        (("python", "none.py"), "the script none.py does not exist"),
        (("none.py",), "the script none.py does not exist"),
        (("other.py",), "the script other.py does not exist"),
        ((sys.executable, "none.py"), "the script none.py does not exist"),
        (("./notes.txt",), "./notes.txt is not executable"),
        (("b:1", "python", "train.py"), "command not found: b:1; if it is a host, separate the hosts of -H by commas"),
        (("no-such-command",), "command not found: no-such-command"),
    ],
)
def test_what_cannot_run_is_said(command, message):
    with pytest.raises(ConfigError, match=message):
        resolve_command(command, None)
