"""Hosts over ssh do what every platform does."""

import pytest
from provider_contract import Platform, ProviderContract

pytestmark = [pytest.mark.hosts, pytest.mark.multiprocess]


class Ssh(Platform):
    """Two hosts with a rank each."""

    lost = 70

    def __init__(self, hosts):
        self.arguments = (*hosts.options(), "-np", "2", "-H", hosts.listed(count=2))


class TestSsh(ProviderContract):
    @pytest.fixture
    def platform(self, hosts):
        return Ssh(hosts)
