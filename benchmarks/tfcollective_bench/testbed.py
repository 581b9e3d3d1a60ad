"""Network namespaces as hosts: every namespace has one link to one bridge, shaped in both directions.

    python -m tfcollective_bench.testbed up N RATE | down | status | exec I COMMAND...

The plans are pure lists of commands; :class:`NetnsTestbed` carries them out. Needs Linux, root, and ``ip`` and
``tc``. There is one test bed a machine, and names beginning with ``tfcbed`` are its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcollective._base.errors import ConfigError, LaunchError, TfCollectiveError
from tfcollective._base.exit_codes import SIGNAL_BASE, ExitCode
from tfcollective._base.log import get_logger
from tfcollective_bench.interrupts import interrupts_deferred

__all__ = [
    "NetnsTestbed",
    "NetnsState",
    "burst_bytes",
    "current_state",
    "down_commands",
    "main",
    "opened",
    "parse_rate",
    "up_commands",
]

_LOG = get_logger(__name__)
BRIDGE = "tfcbed"
_CLAIM = "\0tfcollective-testbed"
_ETC = Path("/etc/netns")
UNLIMITED = "none"
_NETWORK = "10.213.87"
_GATEWAY_NUMBER = 254
_MAX_HOSTS = 64
_INSIDE = "eth0"
_RATE = re.compile(r"^(\d+(?:\.\d+)?)([kmg])bit$")
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
# A packet of offloaded segmentation has to fit in, and what passes between two ticks of a busy machine; more would let
# short messages through at the speed of memory.
_MIN_BURST_BYTES = 128 << 10
_BURST_S = 0.001
_QUEUE_S = 0.02
_COMMAND_TIMEOUT_S = 30.0
_KILL_WAIT_S = 5.0


@dataclass(frozen=True)
class NetnsTestbed:
    """A test bed of ``hosts`` hosts, numbered from 1, whose links carry ``rate`` (as ``tc`` writes it, or ``none``)."""

    hosts: int
    rate: str

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= _MAX_HOSTS:
            raise ConfigError(f"hosts: expected 1 to {_MAX_HOSTS}, got {self.hosts}")
        parse_rate(self.rate)

    @property
    def numbers(self) -> range:
        """The hosts."""
        return range(1, self.hosts + 1)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The names of the network namespaces."""
        return tuple(map(_namespace, self.numbers))

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The interfaces on this side: what they receive, the hosts have sent."""
        return tuple(map(_interface, self.numbers))

    @property
    def addresses(self) -> tuple[str, ...]:
        """The hosts' addresses."""
        return tuple(f"{_NETWORK}.{number}" for number in self.numbers)

    @property
    def gateway(self) -> str:
        """The address of this side."""
        return f"{_NETWORK}.{_GATEWAY_NUMBER}"


@dataclass(frozen=True)
class NetnsState:
    """The state of the test bed: the test bed as requested (None: unknown, perhaps half built), its parts, the
    processes in it, and the hosts' folders below ``/etc/netns``."""

    testbed: NetnsTestbed | None
    namespaces: tuple[str, ...]
    links: tuple[str, ...]
    processes: tuple[int, ...]
    folders: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """True if there is nothing."""
        return not self.namespaces and not self.links and not self.folders


def parse_rate(text: str) -> float | None:
    """Bits a second of ``1gbit``, ``2.5gbit``, ``100mbit`` ..., None for ``none``; ConfigError otherwise."""
    if text == UNLIMITED:
        return None
    found = _RATE.match(text)
    if found is None or float(found[1]) == 0:
        raise ConfigError(f"not a rate: {text!r}; write for example 1gbit, 100mbit or {UNLIMITED}")
    return float(found[1]) * _UNITS[found[2]]


def up_commands(testbed: NetnsTestbed) -> list[tuple[str, ...]]:
    """The commands that build a test bed where there is none."""
    commands: list[tuple[str, ...]] = [
        ("ip", "link", "add", BRIDGE, "type", "bridge"),
        ("ip", "address", "add", f"{testbed.gateway}/24", "dev", BRIDGE),
        ("ip", "link", "set", BRIDGE, "up"),
    ]
    for name, interface, address in zip(testbed.namespaces, testbed.interfaces, testbed.addresses, strict=True):
        inside = ("ip", "-n", name)
        commands += [
            ("ip", "netns", "add", name),
            ("ip", "link", "add", interface, "type", "veth", "peer", "name", _INSIDE, "netns", name),
            ("ip", "link", "set", interface, "master", BRIDGE),
            (*inside, "address", "add", f"{address}/24", "dev", _INSIDE),
            (*inside, "link", "set", "lo", "up"),
            (*inside, "link", "set", _INSIDE, "up"),
            ("ip", "link", "set", interface, "up"),
        ]
        shape = _shape(testbed.rate)
        if shape:
            commands += [
                ("tc", "qdisc", "add", "dev", interface, "root", *shape),
                ("tc", "-n", name, "qdisc", "add", "dev", _INSIDE, "root", *shape),
            ]
    # Last: a test bed that has this was built to the end.
    return [*commands, ("ip", "link", "set", BRIDGE, "alias", f"{testbed.hosts} {testbed.rate}")]


def burst_bytes(bits: float) -> int:
    """Returns the number of bytes that pass an idle link of so many bits a second at once."""
    return max(_MIN_BURST_BYTES, int(bits / 8 * _BURST_S))


def _shape(rate: str) -> tuple[str, ...]:
    bits = parse_rate(rate)
    if bits is None:
        return ()
    burst = burst_bytes(bits)
    limit = burst + int(bits / 8 * _QUEUE_S)
    return ("tbf", "rate", rate, "burst", str(burst), "limit", str(limit))


def down_commands(state: NetnsState) -> list[tuple[str, ...]]:
    """The commands that remove the test bed. The links first: they would outlive their namespace for a moment."""
    interfaces = [link for link in state.links if link != BRIDGE]
    commands: list[tuple[str, ...]] = [("ip", "link", "delete", interface) for interface in interfaces]
    commands += [("ip", "netns", "delete", name) for name in state.namespaces]
    if BRIDGE in state.links:
        commands.append(("ip", "link", "delete", BRIDGE))
    return commands


def current_state() -> NetnsState:
    """Returns the state of the test bed on this machine."""
    _check_possible()
    named = json.loads(_run(("ip", "-json", "netns", "list")) or "[]")
    namespaces = tuple(sorted((n["name"] for n in named if n["name"].startswith(BRIDGE)), key=_number))
    links = json.loads(_run(("ip", "-json", "link", "show")) or "[]")
    ours = {link["ifname"]: link.get("ifalias", "") for link in links if link["ifname"].startswith(BRIDGE)}
    processes = tuple(
        int(pid) for name in namespaces for pid in _run(("ip", "netns", "pids", name)).split() if pid.isdigit()
    )
    folders = tuple(str(path) for path in sorted(_ETC.glob(f"{BRIDGE}*")))
    return NetnsState(
        _testbed_from_alias(ours.get(BRIDGE, "")), namespaces, tuple(sorted(ours, key=_number)), processes, folders
    )


def up(testbed: NetnsTestbed) -> None:
    """Makes the test bed exist. One that is there stays; another is replaced unless it is in use (LaunchError)."""
    if current_state().testbed == testbed:
        return
    with _claimed():
        _check_unused()
        _build(testbed)


def _check_unused() -> None:
    state = current_state()
    if state.processes:
        pids = ", ".join(map(str, state.processes))
        raise LaunchError(f"the test bed is in use (processes {pids}); end it: tools/testbed.sh down")


@contextlib.contextmanager
def _claimed() -> Iterator[None]:
    """Keeps other programs from building or taking over a test bed: both would end each other's processes.

    The claim is a name that the kernel forgets with this process, however that ends, and that networks of their own
    (``tools/own_network.sh``) have one each.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        try:
            claim.bind(_CLAIM)
        except OSError as error:
            raise LaunchError(
                "the test bed is in use by another program on this machine, and there is only one"
            ) from error
        yield


def _build(testbed: NetnsTestbed) -> None:
    state = current_state()
    if state.testbed == testbed:
        return
    _take_down(state)
    try:
        _write_hosts_files(testbed)
        for command in up_commands(testbed):
            _run(command)
    except BaseException:
        with interrupts_deferred():
            _take_down(current_state())
        raise


def down() -> None:
    """Ends the processes in the test bed and takes it away. Nothing if there is none."""
    state = current_state()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not state.processes:
            break
        for pid in state.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        state = _wait_for_end(_KILL_WAIT_S)
    _take_down(state)


@contextlib.contextmanager
def opened(testbed: NetnsTestbed) -> Iterator[NetnsTestbed]:
    """The test bed, for as long as the block runs; it is gone afterwards, however the block ends.

    Raises LaunchError when there cannot be one, or another program uses it.
    """
    _check_possible()
    with _claimed():
        _check_unused()
        try:
            _build(testbed)
            yield testbed
        finally:
            with interrupts_deferred():
                _down_or_say()


def _down_or_say() -> None:
    """Removes the test bed; only logs a failure, which must not hide the results or the error of the run."""
    try:
        down()
    except LaunchError as error:
        _LOG.warning("the test bed could not be taken away (%s): tools/testbed.sh down", error)


def _wait_for_end(seconds: float) -> NetnsState:
    deadline = time.monotonic() + seconds
    while (state := current_state()).processes and time.monotonic() < deadline:
        time.sleep(0.05)  # they are no children of this process: there is no event for their end
    return state


def hosts_file(testbed: NetnsTestbed, number: int, name: str) -> str:
    """Returns the ``/etc/hosts`` of a host: this machine's ``name`` is the host's own address there, as on a real host.
    Programs that look themselves up by name (Gloo does) would otherwise find loopback."""
    others = [f"{address} {namespace}" for _, namespace, address in _rows(testbed)]
    return "\n".join(["127.0.0.1 localhost", f"{testbed.addresses[number - 1]} {name}", *others]) + "\n"


def _write_hosts_files(testbed: NetnsTestbed) -> None:
    """``ip netns exec`` lays ``/etc/netns/NAME/*`` over ``/etc``."""
    try:
        for number, namespace in zip(testbed.numbers, testbed.namespaces, strict=True):
            folder = _ETC / namespace
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(hosts_file(testbed, number, socket.gethostname()), "ascii")
    except OSError as error:
        raise LaunchError(f"cannot write the hosts' /etc/hosts: {error}") from error


def _take_down(state: NetnsState) -> None:
    """Tries everything, then tells of the first failure."""
    failures = []
    for folder in state.folders:
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        _ETC.rmdir()  # if no other program keeps anything there
    for command in down_commands(state):
        try:
            _run(command)
        except LaunchError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _namespace(number: int) -> str:
    return f"{BRIDGE}{number}"


def _interface(number: int) -> str:
    return f"{BRIDGE}{number}c"


def _number(name: str) -> int:
    digits = re.sub(r"\D", "", name)
    return int(digits) if digits else 0


def _testbed_from_alias(alias: str) -> NetnsTestbed | None:
    hosts, _, rate = alias.partition(" ")
    try:
        return NetnsTestbed(int(hosts), rate)
    except ValueError:
        return None


def _check_possible() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise LaunchError("network namespaces need Linux and root")
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise LaunchError(f"network namespaces need {' and '.join(missing)}: install iproute2")


def _run(command: Sequence[str]) -> str:
    """The command's stdout; LaunchError with its last words when it fails."""
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise LaunchError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _describe(state: NetnsState) -> str:
    if state.empty:
        return "there is no test bed"
    if state.testbed is None:
        return f"half a test bed: {', '.join((*state.namespaces, *state.links))}; take it away: tools/testbed.sh down"
    lines = [f"{state.testbed.hosts} hosts at {state.testbed.rate}, bridge {BRIDGE} {state.testbed.gateway}"]
    lines += [f"  {number}: {name} {address}" for number, name, address in _rows(state.testbed)]
    lines.append(f"  processes: {', '.join(map(str, state.processes)) or 'none'}")
    return "\n".join(lines)


def _rows(testbed: NetnsTestbed) -> Iterator[tuple[int, str, str]]:
    yield from zip(testbed.numbers, testbed.namespaces, testbed.addresses, strict=True)


def _execute(arguments: Sequence[str]) -> None:
    """Becomes the command on a host."""
    state = current_state()
    number, *command = arguments
    if state.testbed is None or not number.isdigit() or int(number) not in state.testbed.numbers:
        raise ConfigError(f"host {number} does not exist: see tools/testbed.sh status")
    os.execvp("ip", ["ip", "netns", "exec", _namespace(int(number)), *command])  # noqa: S606  no shell is wanted


def _invoke(arguments: Sequence[str]) -> int:
    match list(arguments):
        case ["up", hosts, rate] if hosts.isdigit():
            up(NetnsTestbed(int(hosts), rate))
        case ["down"]:
            down()
        case ["status"]:
            sys.stdout.write(_describe(current_state()) + "\n")
        case ["exec", number, *command] if command:
            _execute([number, *command])
        case _:
            sys.stderr.write("usage: testbed up N RATE | down | status | exec I COMMAND...\n")
            return ExitCode.USAGE
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    try:
        return _invoke(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return SIGNAL_BASE + signal.SIGINT
    except TfCollectiveError as error:
        sys.stderr.write(f"testbed: {error}\n")
        return ExitCode.USAGE if isinstance(error, ConfigError) else 1


if __name__ == "__main__":
    sys.exit(main())
