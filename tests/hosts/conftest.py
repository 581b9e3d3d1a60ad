"""Network namespaces as hosts: a real sshd in each, and interfaces that are called differently everywhere."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from launching import Run, until
from time_limits import within

from tfcollective_bench.testbed import NetnsTestbed, current_state, opened

HOSTS = 4
_SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
_CONFIG = """
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/../id.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 64
AcceptEnv TFC_TEST_MARK
"""


def missing(needed):
    """Why there can be no hosts here with these programs, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    for program, package in needed.items():
        if shutil.which(program) is None:
            return f"{program} is missing: install {package}"
    return None


@dataclass
class Hosts:
    """The hosts, and how to run jobs on them."""

    testbed: NetnsTestbed
    folder: Path
    sshds: dict

    @property
    def addresses(self):
        return self.testbed.addresses

    def listed(self, slots=1, count=HOSTS):
        return ",".join(f"{address}:{slots}" for address in self.addresses[:count])

    def options(self, known_hosts="known_hosts", identity="id"):
        ssh = f"-F none -o UserKnownHostsFile={self.folder / known_hosts} -o SendEnv=TFC_TEST_MARK"
        return ("--ssh-options", ssh, "-i", str(self.folder / identity))

    def run(self, *arguments, **options):
        return Run((*self.options(), *arguments), **options)

    def finish(self, *arguments, timeout=90, **options):
        with self.run(*arguments, **options) as one:
            result = one.finish(timeout)
            one.wait_until_gone(2.0)
            return result

    def start_sshd(self, number, key="host_key"):
        """On host ``number``, counted from 1; ends the one that runs there."""
        self.stop_sshd(number)
        folder = self.folder / f"host{number}"
        folder.mkdir(exist_ok=True)
        if not (folder / key).exists():
            _keygen(folder / key)
        config = folder / f"sshd_config_{key}"
        text = _CONFIG.format(address=self.addresses[number - 1], folder=folder)
        config.write_text(text.replace("/host_key", f"/{key}"))
        inside = ["ip", "netns", "exec", self.testbed.namespaces[number - 1]]
        with (folder / "log").open("ab") as log:
            self.sshds[number] = subprocess.Popen([*inside, _SSHD, "-D", "-e", "-f", str(config)], stderr=log)
        _wait_for_port(inside, self.addresses[number - 1])

    def stop_sshd(self, number):
        running = self.sshds.pop(number, None)
        if running is not None:
            running.terminate()
            running.wait(within(10))

    def cut(self, number):
        """Takes the link of a host down."""
        _ip("link", "set", self.testbed.interfaces[number - 1], "down")

    def mend(self, number):
        _ip("link", "set", self.testbed.interfaces[number - 1], "up")


def _ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=20)


def _keygen(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=20)


def _wait_for_port(inside, address):
    probe = f"import socket; socket.create_connection(('{address}', 22), 1)"
    there = [*inside, sys.executable, "-c", probe]
    until(lambda: subprocess.run(there, capture_output=True).returncode == 0, 20, lambda: "sshd does not listen")


def _rename_interfaces(testbed):
    for number, name in zip(testbed.numbers, testbed.namespaces):
        for words in (("eth0", "down"), ("eth0", "name", f"lan{number}"), (f"lan{number}", "up")):
            _ip("-n", name, "link", "set", *words)


@pytest.fixture(scope="session")
def testbed():
    """Hosts without anything that runs on them."""
    reason = missing({"ip": "iproute2", "tc": "iproute2"})
    if reason is not None:
        pytest.skip(reason)
    if not current_state().empty:
        pytest.skip("there is a test bed already, perhaps in use")
    with opened(NetnsTestbed(HOSTS, "none")) as testbed:
        _rename_interfaces(testbed)
        yield testbed


@pytest.fixture(scope="session")
def hosts(testbed, tmp_path_factory):
    reason = missing({"ssh": "openssh-client", "ssh-keygen": "openssh-client", _SSHD: "openssh-server"})
    if reason is not None:
        pytest.skip(reason)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    folder = tmp_path_factory.mktemp("ssh")
    _keygen(folder / "id")
    _keygen(folder / "unauthorized")
    made = Hosts(testbed, folder, {})
    try:
        for number in testbed.numbers:
            made.start_sshd(number)
        yield made
    finally:
        for number in testbed.numbers:
            made.stop_sshd(number)
