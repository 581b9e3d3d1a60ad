import shutil
import subprocess
import sys

import pytest

from tfcollective._base.addresses import is_own_address, route_address

# In a network namespace of its own with nothing but a loopback interface and one address.
NAMESPACE = ["unshare", "--map-root-user", "--net", "sh", "-c"]
PREPARED = (
    "ip link set lo up && ip address add 10.9.8.1/24 dev lo && echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind "
    '&& exec "$0" -c "$1"'
)
PROGRAM = """
import socket
from tfcollective._base.addresses import is_own_address
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("203.0.113.7", 0))
print([is_own_address(one) for one in ("10.9.8.1", "127.0.0.5", "203.0.113.7")])
"""


def namespaces_work():
    tools = shutil.which("unshare") and shutil.which("ip")
    return bool(tools) and subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


def test_addresses_of_this_machine():
    assert is_own_address("127.0.0.1")
    assert is_own_address("127.8.7.6")
    assert is_own_address("::1")
    assert not is_own_address("203.0.113.7")  # of a network for documentation (RFC 5737)
    own = route_address("203.0.113.7")
    assert own is None or is_own_address(own)


@pytest.mark.skipif(not namespaces_work(), reason="needs ip, and unshare that may make network namespaces")
def test_a_bindable_address_may_belong_elsewhere():
    command = [*NAMESPACE, PREPARED, sys.executable, PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[True, True, False]", done.stderr
