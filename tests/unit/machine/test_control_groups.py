"""What a process may use of a machine's cores and memory, read from folders that stand for the kernel's."""

import pytest

from tfcollective._base.machine.control_groups import MemoryKills, MemoryLimit, memory_kills, memory_limit, quota_cores
from tfcollective._base.machine.cores import available_cores


def mounted(tmp_path, kind, root="/", controllers="rw"):
    return f"31 23 0:28 {root} {tmp_path} rw,relatime shared:9 - {kind} none {controllers}\n"


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000\n", None), ("200000 100000\n", 2), ("150000 100000\n", 2), ("1000 100000\n", 1), ("", None)],
)
def test_the_quota_of_a_group(tmp_path, text, cores):
    (tmp_path / "mountinfo").write_text("nonsense\n" + mounted(tmp_path, "cgroup2"))
    (tmp_path / "cgroup").write_text("nonsense\n0::/\n")
    (tmp_path / "cpu.max").write_text(text)
    assert quota_cores(tmp_path) == cores


def test_the_tightest_of_nested_groups_counts(tmp_path):
    (tmp_path / "mountinfo").write_text(mounted(tmp_path, "cgroup2"))
    (tmp_path / "cgroup").write_text("0::/job/rank\n")
    (tmp_path / "job" / "rank").mkdir(parents=True)
    (tmp_path / "job" / "cpu.max").write_text("300000 100000\n")
    (tmp_path / "job" / "rank" / "cpu.max").write_text("800000 100000\n")
    assert quota_cores(tmp_path) == 3


def test_version_1_counts(tmp_path):
    hierarchies = mounted(tmp_path / "set", "cgroup", controllers="rw,cpuset")
    (tmp_path / "mountinfo").write_text(hierarchies + mounted(tmp_path, "cgroup", controllers="rw,cpu,cpuacct"))
    (tmp_path / "cgroup").write_text("4:cpuset:/\n3:cpu,cpuacct:/docker/1\n")
    folder = tmp_path / "docker" / "1"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("400000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert quota_cores(tmp_path) == 4
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert quota_cores(tmp_path) is None


@pytest.mark.parametrize("group", ["/kubepods/pod1", "/", "/kubepods/pod12"])
def test_a_container_sees_its_own_group_only(tmp_path, group):
    (tmp_path / "mountinfo").write_text(mounted(tmp_path, "cgroup2", root="/kubepods/pod1"))
    (tmp_path / "cgroup").write_text(f"0::{group}\n")
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    assert quota_cores(tmp_path) == 2


def test_without_a_kernels_quota_there_is_none(tmp_path):
    assert quota_cores(tmp_path) is None
    assert available_cores() >= 1


def test_the_group_with_the_least_memory_left_counts(tmp_path):
    (tmp_path / "mountinfo").write_text(mounted(tmp_path, "cgroup2"))
    (tmp_path / "cgroup").write_text("0::/job/rank\n")
    folder = tmp_path / "job" / "rank"
    folder.mkdir(parents=True)
    (tmp_path / "job" / "memory.max").write_text("1000\n")
    (tmp_path / "job" / "memory.current").write_text("900\n")
    (folder / "memory.max").write_text("500\n")
    (folder / "memory.current").write_text("100\n")
    assert memory_limit(tmp_path) == MemoryLimit(1000, 900)
    (tmp_path / "job" / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) == MemoryLimit(500, 100)
    (folder / "memory.max").unlink()
    assert memory_limit(tmp_path) is None


@pytest.mark.parametrize(("limit", "expected"), [("4096", MemoryLimit(4096, 96)), ("9223372036854771712", None)])
def test_memory_of_version_1(tmp_path, limit, expected):
    (tmp_path / "mountinfo").write_text(mounted(tmp_path, "cgroup", controllers="rw,memory"))
    (tmp_path / "cgroup").write_text("3:memory:/\n")
    (tmp_path / "memory.limit_in_bytes").write_text(limit)
    (tmp_path / "memory.usage_in_bytes").write_text("96")
    assert memory_limit(tmp_path) == expected


def test_memory_kills_by_the_kernel(tmp_path):
    proc = tmp_path / "self"
    proc.mkdir()
    assert memory_kills(proc) is None
    (tmp_path / "vmstat").write_text("pgfault 1\noom_kill 7\n")
    assert memory_kills(proc) == MemoryKills("host", 7)
    (proc / "mountinfo").write_text(mounted(tmp_path, "cgroup2"))
    (proc / "cgroup").write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    assert memory_kills(proc) == MemoryKills("host", 7)  # the controller is not there
    (tmp_path / "job" / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert memory_kills(proc) == MemoryKills("control group", 2)


def test_memory_kills_of_version_1(tmp_path):
    unified = mounted(tmp_path / "unified", "cgroup2")  # without the controller
    (tmp_path / "mountinfo").write_text(unified + mounted(tmp_path, "cgroup", controllers="rw,memory"))
    (tmp_path / "cgroup").write_text("5:memory:/job\n0::/\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert memory_kills(tmp_path) == MemoryKills("control group", 4)
