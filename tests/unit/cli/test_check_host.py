"""What ``tfcollective check`` says of a host, shown by a host that is not this one."""

import errno
import os
import resource
import socket
from concurrent.futures import TimeoutError as FutureTimeoutError

import pytest

from tfcollective._base.version import TENSORFLOWS
from tfcollective._cli import check as check_module
from tfcollective._cli import host_checks
from tfcollective._cli.host_checks import Host


def test_all_is_well_or_noted_here():
    findings = {finding.name: finding for finding in host_checks.host_findings()}
    assert list(findings) == [
        *("C library", "shared memory", "/dev/shm", "cores and memory", "host name", "proxies", "limits of this user")
    ]
    assert findings["C library"].detail.startswith("glibc 2.")
    assert f"of {os.cpu_count()} cores" in findings["cores and memory"].detail


def test_a_system_without_glibc_fails(monkeypatch):
    monkeypatch.setattr(os, "confstr", lambda name: None)
    finding = host_checks.c_library(Host())
    assert not finding.ok
    assert "Alpine has musl" in finding.remedy


def test_a_seccomp_profile_that_forbids_memory_is_noted(tmp_path):
    def refuse(name):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    (tmp_path / "status").write_text("Name:\tpython\nSeccomp:\t2\n")
    finding = host_checks.shared_memory(Host(proc=tmp_path, make_memory=refuse))
    assert finding.ok and finding.noted
    assert "EPERM" in finding.detail and "a seccomp filter is active" in finding.detail
    assert "vm.memfd_noexec" in finding.remedy
    assert host_checks.shared_memory(Host(proc=tmp_path)).remedy == ""


@pytest.mark.parametrize(("size", "free", "noted"), [(64, 60, True), (4096, 4000, False)])
def test_dev_shm(monkeypatch, tmp_path, size, free, noted):
    usage = lambda path: type("Usage", (), {"total": size << 20, "free": free << 20})  # noqa: E731
    monkeypatch.setattr(host_checks.shutil, "disk_usage", usage)
    finding = host_checks.dev_shm(Host(shm=tmp_path))
    assert finding.ok
    assert finding.noted == ("--shm-size" in finding.remedy) == noted


def test_no_dev_shm_is_noted(tmp_path):
    finding = host_checks.dev_shm(Host(shm=tmp_path / "none"))
    assert finding.ok and finding.noted
    assert "No such file" in finding.detail and "--shm-size" in finding.remedy


@pytest.mark.parametrize(("limit", "ok"), [(1 << 28, False), (1 << 33, True)])
def test_a_memory_limit(tmp_path, limit, ok):
    (tmp_path / "mountinfo").write_text(f"31 23 0:28 / {tmp_path} rw - cgroup2 none rw\n")
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "memory.max").write_text(str(limit))
    (tmp_path / "memory.current").write_text(str(1 << 27))
    finding = host_checks.container_limits(Host(proc=tmp_path))
    assert finding.ok == ok
    assert "left by the control group" in finding.detail
    assert ("raise the memory limit" in finding.remedy) != ok


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), FutureTimeoutError()])
def test_a_name_that_does_not_resolve_is_noted(error):
    def resolve(name):
        raise error

    finding = host_checks.host_name(Host(resolve=resolve))
    assert finding.ok and finding.noted
    assert "does not resolve" in finding.detail
    assert "/etc/hosts" in finding.remedy


def test_a_loopback_name_says_what_replaces_it():
    detail = host_checks.host_name(Host(resolve=lambda name: ["127.0.1.1"])).detail
    assert detail == f"{socket.gethostname()} is 127.0.1.1; " + detail.partition("; ")[2]
    assert "the default route" in detail
    assert "default route" not in host_checks.host_name(Host(resolve=lambda name: ["10.0.0.5"])).detail


def test_proxies_are_named_without_their_values():
    finding = host_checks.proxies(Host(environ={"HTTPS_PROXY": "http://me:pass@proxy:3128", "no_proxy": "", "A": "b"}))
    assert finding.detail == "HTTPS_PROXY: not used between the processes of a job"
    assert host_checks.proxies(Host(environ={})).detail == "none"


def test_low_limits_fail():
    low = {resource.RLIMIT_NOFILE: 64, resource.RLIMIT_NPROC: resource.RLIM_INFINITY, resource.RLIMIT_AS: 1 << 30}
    finding = host_checks.user_limits(Host(limit=lambda number: (low[number], low[number])))
    assert not finding.ok
    assert finding.detail == "open files 64, processes and threads unlimited, address space 1024 MiB"
    assert "ulimit -Hn says 64, 256 is needed" in finding.remedy
    assert "ulimit -Hv says 1024 MiB, 8192 MiB is needed" in finding.remedy
    assert "-Hu" not in finding.remedy


@pytest.mark.parametrize(
    ("installed", "ok", "said"),
    [
        ({}, True, "not installed"),
        ({"tensorflow-cpu": "2.21.0", "keras": "3.12.0"}, True, "tensorflow-cpu 2.21.0"),
        ({"tensorflow": "2.15.1", "keras": "2.15.0"}, True, "keras 2.15.0"),
        ({"tensorflow": "2.15.1", "keras": "3.4.0"}, False, "pip install 'keras<3'"),
        ({"tensorflow": "2.16.2", "keras": "2.15.0"}, False, "pip install 'keras>=3'"),
        ({"tensorflow": "2.21.0"}, False, "keras None"),
        ({"tensorflow": "2.14.1", "keras": "2.14.0"}, False, "install TensorFlow 2.15.1 or newer"),
        ({"tensorflow": "2.21.0", "tensorflow-cpu": "2.20.0", "keras": "3.12.0"}, False, "pip uninstall tensorflow"),
        ({"tf-nightly": "2.99.0.dev20300102", "keras-nightly": "3.99.0.dev20300102"}, True, "keras 3.99.0.dev"),
    ],
)
def test_versions_that_do_not_fit(monkeypatch, installed, ok, said):
    monkeypatch.setattr(check_module, "_version", installed.get)
    finding = check_module._tensorflow_version()
    assert finding.ok == ok
    assert said in f"{finding.detail} {finding.remedy}"


@pytest.mark.parametrize(
    ("package", "version", "remedy"),
    [
        ("tensorflow-cpu", "2.99.0", "pip install 'tensorflow-cpu<2."),
        ("tensorflow", "3.0.0rc0", "pip install 'tensorflow<2."),
        ("tf-nightly-cpu", "2.99.0.dev20300102", "pip install 'tensorflow-cpu<2."),
    ],
)
def test_a_newer_tensorflow_than_was_tested_is_noted(monkeypatch, package, version, remedy):
    monkeypatch.setattr(check_module, "_version", {package: version, "keras": "3.99.0"}.get)
    finding = check_module._tensorflow_version()
    assert finding.ok and finding.noted
    assert f"newer than {TENSORFLOWS[-1]}, the newest" in finding.detail
    assert remedy in finding.remedy


@pytest.mark.parametrize("minor", TENSORFLOWS)
def test_a_tested_tensorflow_is_not_noted(monkeypatch, minor):
    keras = "2.15.0" if minor == "2.15" else "3.12.0"
    monkeypatch.setattr(check_module, "_version", {"tensorflow": f"{minor}.1", "keras": keras}.get)
    finding = check_module._tensorflow_version()
    assert finding.ok and not finding.noted


def test_a_library_for_a_newer_system_says_so(monkeypatch):
    from tfcollective._base.errors import ConfigError
    from tfcollective._runtime import native_library as _native

    def load(path):
        raise ConfigError("/lib/libc.so.6: version `GLIBC_2.35' not found")

    monkeypatch.setattr(_native, "load", load)
    finding = check_module._native_library()
    assert not finding.ok
    assert "build it here" in finding.remedy


@pytest.mark.parametrize(
    ("installed", "prebuilt", "compiler", "said"),
    [
        ({"tensorflow-cpu": "2.21.0"}, False, None, "not needed"),
        ({"tensorflow": "2.21.0"}, True, None, "those for TensorFlow 2.21.0 are in this installation"),
        ({"tensorflow": "2.20.0"}, False, "/usr/bin/g++", "/usr/bin/g++ compiles them"),
        ({"tensorflow": "2.20.0"}, False, None, "no compiler; only GPUs need them install g++"),
    ],
)
def test_kernels_for_another_tensorflow(monkeypatch, tmp_path, installed, prebuilt, compiler, said):
    from tfcollective._runtime.native_library import tf_gpu

    monkeypatch.setattr(check_module, "_version", installed.get)
    monkeypatch.setattr(tf_gpu, "prebuilt", lambda version: tmp_path if prebuilt else tmp_path / "none")
    monkeypatch.setattr(tf_gpu, "find_compiler", lambda: compiler)
    finding = check_module._gpu_kernels()
    assert finding.ok
    assert said in f"{finding.detail} {finding.remedy}"
