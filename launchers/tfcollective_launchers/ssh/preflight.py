"""Asks every host whether it can take part, before anything starts, and says how to mend what is wrong."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from tfcollective._version import __version__
from tfcollective.errors import LaunchError
from tfcollective_launchers.ssh.command import SshOptions, ssh_command

__all__ = ["Answer", "Visitor", "ask_all", "diagnose"]

_TIMEOUT_S = 30.0
_AT_ONCE = 32
_SSH_FAILED = 255
_NOT_FOUND = 127
_MARK = "tfcollective-preflight "
# Sent over stdin. It has to run under any Python 3, to tell which one it is.
_PROGRAM = f"""
import json, os, sys
facts = {{"python": "%d.%d.%d" % sys.version_info[:3]}}
facts["ssh"] = os.environ.get("SSH_CONNECTION", "")
del sys.path[0]
try:
    os.chdir(sys.argv[1])
except OSError as error:
    facts["directory"] = str(error)
try:
    from tfcollective._version import __version__
    facts["version"] = __version__
except ImportError as error:
    facts["missing"] = str(error)
print("\\n{_MARK}" + json.dumps(facts))
"""


@dataclass(frozen=True)
class Answer:
    """What running the program on a host has come to."""

    code: int | None
    stdout: str
    stderr: str

    @property
    def facts(self) -> Mapping[str, object] | None:
        """What the program has said; a login shell may say more. None when it has not, or not to the end."""
        for line in self.stdout.splitlines():
            if line.startswith(_MARK):
                with suppress(ValueError):
                    found = json.loads(line[len(_MARK) :])
                    return found if isinstance(found, dict) else None
        return None


@dataclass(frozen=True)
class Visitor:
    """A host that can take part, and the address under which it sees us."""

    host: str
    our_address: str


def ask_all(hosts: Mapping[str, SshOptions], directory: str) -> tuple[Visitor, ...]:
    """Asks all hosts at once, each with its options.

    Raises LaunchError that names every host that cannot take part, with the remedy.
    """
    if not hosts:
        return ()
    with ThreadPoolExecutor(min(len(hosts), _AT_ONCE)) as pool:
        answers = list(pool.map(lambda host: _ask(host, hosts[host], directory), hosts))
    problems = [
        f"{host}: {problem}"
        for host, answer in zip(hosts, answers, strict=True)
        if (problem := diagnose(host, answer, hosts[host])) is not None
    ]
    if problems:
        raise LaunchError("nothing was started, because not all hosts can take part:\n  " + "\n  ".join(problems))
    return tuple(Visitor(host, _our_address(answer)) for host, answer in zip(hosts, answers, strict=True))


def _ask(host: str, options: SshOptions, directory: str) -> Answer:
    command = ssh_command(host, options, [options.python, "-", directory])
    try:
        done = subprocess.run(
            command, input=_PROGRAM, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Answer(None, "", "")
    except OSError as error:
        raise LaunchError(f"cannot run ssh: {error}; install the OpenSSH client") from error
    return Answer(done.returncode, done.stdout, done.stderr)


def diagnose(host: str, answer: Answer, options: SshOptions) -> str | None:
    """Why a host cannot take part and what to do about it; None when it can."""
    if answer.code is None:
        return f"no answer within {_TIMEOUT_S:g} s; see whether this ends: ssh {host} true"
    if answer.code == _SSH_FAILED:
        return _ssh_problem(host, answer.stderr)
    facts = answer.facts
    if facts is None:
        return _python_problem(answer, options)
    python, wanted = str(facts.get("python")), platform.python_version()
    if _minor(python) != _minor(wanted):
        return (
            f"{options.python} is Python {python} there, here it is {wanted}; use the same one "
            f"({_minor(wanted)}) on all hosts, or name it with --remote-python"
        )
    if "missing" in facts:
        return (
            f"{options.python} has no tfcollective there ({facts['missing']}); "
            f"install it: {options.python} -m pip install tfcollective=={__version__}"
        )
    if facts.get("version") != __version__:
        return (
            f"tfcollective {facts.get('version')} is installed there, {__version__} here; "
            f"install the same: {options.python} -m pip install tfcollective=={__version__}"
        )
    if "directory" in facts:
        return f"the working directory is not there ({facts['directory']}); share it, or name another one with --cwd"
    return None


def _ssh_problem(host: str, stderr: str) -> str:
    """Ssh has one exit code for all that goes wrong; its words choose which remedy we name, and nothing else."""
    lines = [line.strip() for line in stderr.strip().splitlines() if line.strip()]
    said = lines[-1] if lines else "ssh failed"
    name = host.rpartition("@")[2]
    if "host key is known for" in stderr:
        return (
            f"its host key is not known here, and ssh is set to refuse new ones ({said}); check it and add it: "
            f"ssh-keyscan {name} >>~/.ssh/known_hosts, or say --ssh-options '-o StrictHostKeyChecking=accept-new'"
        )
    if "HOST IDENTIFICATION HAS CHANGED" in stderr or "Host key verification failed" in stderr:
        return (
            f"its host key is not the one that is known ({said}); if the host was set up anew, forget the old key: "
            f"ssh-keygen -R {name}. If not, another machine may be answering in its place"
        )
    if "Permission denied" in stderr:
        return (
            f"ssh is refused ({said}); it has to work without a password: ssh-copy-id {host}, or name the key with "
            "--ssh-identity-file"
        )
    return f"ssh cannot connect ({said}); see whether this works: ssh {host} true"


def _python_problem(answer: Answer, options: SshOptions) -> str:
    lines = [line.strip() for line in answer.stderr.strip().splitlines() if line.strip()]
    said = lines[-1] if lines else f"exit code {answer.code}"
    if answer.code == _NOT_FOUND:
        return f"there is no {options.python} ({said}); name the interpreter there with --remote-python"
    return f"{options.python} does not run as a Python does ({said}); name another one with --remote-python"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _our_address(answer: Answer) -> str:
    """Sshd tells the address that we came from: the one that the host can reach us under."""
    facts = answer.facts or {}
    return str(facts.get("ssh", "")).partition(" ")[0]
