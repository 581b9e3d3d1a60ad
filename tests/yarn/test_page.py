"""What docs/howto/yarn.md shows first works word for word."""

import pytest
from pages import first_job, type_in

pytestmark = [pytest.mark.yarn, pytest.mark.tensorflow, pytest.mark.timeout(900)]


def test_the_first_job_prints_what_the_page_says(yarn, tmp_path):
    typed, shown = first_job("yarn.md")
    done = type_in(tmp_path, "bash", "-ec", typed, seconds=600)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("[")) == shown
