"""Runs a job on hosts that ssh reaches; hosts that are this machine need no ssh."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from tfcollective.launcher import (
    ACCEPT_NEW,
    AGENT,
    DEFAULTS,
    Capabilities,
    CommandProvider,
    ConfigError,
    HostDiscovery,
    JobOutcome,
    JobSpec,
    Launcher,
    LaunchError,
    Plan,
    SshOptions,
    __version__,
    choose_address,
    environ_snapshot,
    hosts_that_ask,
    interface_addresses,
    is_own_host,
    own_address,
    own_agent,
    plan_hosts,
    run_job_on,
    share_out,
)

_DEFAULTS = (*DEFAULTS, "-o", "ServerAliveInterval=15")


def accepting_new_keys(options: SshOptions, hosts: Collection[str]) -> dict[str, SshOptions]:
    """The options for each host: where ssh would ask whether a new host's key is right, it takes the key."""
    asking = hosts_that_ask(hosts, options.options)
    accepting = replace(options, options=(*options.options, *ACCEPT_NEW))
    return {host: accepting if host in asking else options for host in hosts}


def ssh_command(host: str, options: SshOptions, remote: Sequence[str]) -> tuple[str, ...]:
    """Returns the command line that runs ``remote`` on ``host``. It holds no secret: everybody on both hosts can read
    it.
    """
    return ("ssh", "-T", *options.arguments, *_DEFAULTS, "--", host, shlex.join(remote))


# ---- asking every host whether it can take part, before anything starts ----------------------------------------------

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
    from tfcollective import __version__
    facts["version"] = __version__
except ImportError as error:
    facts["missing"] = str(error)
print("\\n{_MARK}" + json.dumps(facts))
"""


@dataclass(frozen=True)
class Answer:
    """The result of running the program on a host."""

    code: int | None
    stdout: str
    stderr: str

    @property
    def facts(self) -> Mapping[str, object] | None:
        """The program's answer, without other output of the login shell; None when it is missing or incomplete."""
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


def ask_one(host: str, options: SshOptions, directory: str) -> None:
    """The same for one host more, of a job that runs. Raises LaunchError."""
    problem = diagnose(host, _ask(host, options, directory), options)
    if problem is not None:
        raise LaunchError(problem)


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
    """Returns why a host cannot take part and what to do about it; None when it can."""
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
            f"its host key is not the known one ({said}); if the host was reinstalled, remove the old key: "
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


class SshLauncher(Launcher):
    """An agent on every host of ``spec.hosts``."""

    options = SshOptions
    capabilities = Capabilities(
        start="ssh to each host of `-H`, `--hostfile` or `--host-discovery-script`",
        logs="live, each line with its rank; `--log-dir` on the hosts",
        gpus="all of the node, or `--gpus-per-proc`",
        elastic="lost ranks and hosts are replaced; the job follows the discovery script",
        preemption="SIGTERM to the agent or a rank; `--preemption-file`, `--preemption-command`",
        restart="`--max-restarts`",
        secrets="ssh's standard input",
        evaluator="on the first host",
    )

    def plan(self, spec: JobSpec) -> Plan:
        """See :class:`Launcher`."""
        if not spec.hosts and spec.discovery:
            spec = spec.on(discovery_of(spec).ask())
        if not spec.hosts:
            raise ConfigError("the launcher 'ssh' needs hosts, for example host1:4,host2:4")
        return plan_hosts(spec, share_out(spec.hosts, spec.num_proc), environ_snapshot())

    def run(self, spec: JobSpec, *, stop_signals: Sequence[int] = ()) -> JobOutcome:
        """See :class:`Launcher`."""
        options = SshOptions.of(spec.platform)
        spec = spec if spec.cwd is not None else replace(spec, cwd=os.getcwd())  # noqa: PTH109  a text is wanted
        discovery = discovery_of(spec) if spec.discovery else None
        if discovery is not None:
            spec = spec.on(discovery.wait_for(spec.num_proc, spec.elastic_timeout))
        plan = self.plan(spec)
        here = [host for host in plan.hosts if is_own_host(host)]
        remote = accepting_new_keys(options, [host for host in plan.hosts if host not in here])
        commands = {host: own_agent() for host in here}
        commands.update({host: _remote_agent(host, one) for host, one in remote.items()})
        visitors = ask_all(remote, str(spec.cwd))

        def find(host: str) -> tuple[Sequence[str], bool]:
            if is_own_host(host):
                return own_agent(), True
            one = accepting_new_keys(options, [host])[host]
            ask_one(host, one, str(spec.cwd))
            return _remote_agent(host, one), False

        return run_job_on(
            lambda job: CommandProvider(commands, here, find=None if spec.bounds is None else find),
            spec,
            plan,
            bind_host=meeting_address(visitors, interface_addresses(), spec.network_interfaces),
            observers=self.observers,
            stop_signals=stop_signals,
            discovery=discovery,
        )


def discovery_of(spec: JobSpec) -> HostDiscovery:
    """Returns the host discovery of a job that has a discovery script."""
    return HostDiscovery(spec.discovery, spec.slots, spec.blacklist)


def _remote_agent(host: str, options: SshOptions) -> tuple[str, ...]:
    return ssh_command(host, options, [options.python, *AGENT])


def meeting_address(visitors: Sequence[Visitor], interfaces: Mapping[str, Sequence[str]], wanted: Sequence[str]) -> str:
    """Returns the coordinator's address: on the interface that is ``wanted``, else where the first host sees us.

    Raises ConfigError when that is not one of our addresses: something on the way translates addresses.
    """
    if wanted:
        return choose_address(interfaces, wanted)
    if not visitors:
        return own_address(())
    seen = visitors[0].our_address
    if not any(seen in addresses for addresses in interfaces.values()):
        raise ConfigError(
            f"{visitors[0].host} sees this machine as {seen or 'no address'}, which no interface here has: "
            "say with --network-interface which one the hosts can reach"
        )
    return seen
