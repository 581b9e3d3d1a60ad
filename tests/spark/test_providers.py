"""Spark does what every platform does."""

import pytest
from launching import environment_of, words_of
from provider_contract import Platform, ProviderContract

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class OnSpark(Platform):
    """Each job is an application of its own, with an executor on each of the two workers."""

    seconds = 120.0
    silence = 30.0

    def __init__(self, options):
        self.arguments = ("-np", "2", "--pass-env", "TFC_TEST_MARK", *options, "--start-timeout", "300")

    def agents(self, job):
        """Those that have started the ranks: what executors run has not the mark."""
        found = [one.parent() for one in self.ranks(job)]
        return [one for one in found if one is not None and "tfcollective_launchers.spark.agent" in words_of(one)]

    def ranks(self, job):
        return [one for one in job.processes() if "TFCOLLECTIVE_TASK" in environment_of(one)]


class TestSpark(ProviderContract):
    @pytest.fixture
    def platform(self, options):
        return OnSpark(options)
