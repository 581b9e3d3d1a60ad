"""Files at URLs are whole or not there, whatever the file system can do; some of fsspec's own stand for HDFS and S3."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

fsspec = pytest.importorskip("fsspec")

from fsspec.implementations.memory import MemoryFileSystem

from tfcollective import files
from tfcollective._base.errors import ConfigError


class Stubborn(MemoryFileSystem):
    """As WebHDFS: a rename does not replace an existing file, and reports no error."""

    protocol = "stubborn"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    ends_after = None

    def mv(self, path1, path2, **options):
        if Stubborn.ends_after is not None:
            if Stubborn.ends_after == 0:
                raise KeyboardInterrupt
            Stubborn.ends_after -= 1
        if not self.exists(path2):
            super().mv(path1, path2)


class Full(MemoryFileSystem):
    """Has no space, and says so as Java would."""

    protocol = "full"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]

    def put_file(self, *args, **options):
        raise RuntimeError("The DiskSpace quota of /model is exceeded\n\tat org.apache.hadoop.hdfs.Something(X.java:1)")


fsspec.register_implementation("stubborn", Stubborn, clobber=True)
fsspec.register_implementation("full", Full, clobber=True)


@pytest.fixture(params=["memory", "file", "stubborn", "here"])
def place(request, tmp_path):
    """A directory on each kind of file system; the last is a plain path."""
    if request.param in ("file", "here"):
        yield f"file://{tmp_path}/model" if request.param == "file" else tmp_path / "model"
        return
    url = f"{request.param}://model-{tmp_path.name}"
    yield url
    files.delete_tree(url)


def write(place, text):
    with files.written_whole(place) as path:
        path.write_text(text)


def read(place):
    with files.local_copy(place) as path:
        return path.read_text()


def test_a_file_is_replaced_and_removed(place):
    target = files.join(place, "deep", "x.json")
    with pytest.raises(FileNotFoundError):
        read(target)
    for text in ("one", "two", "three"):
        write(target, text)
        assert read(target) == text
    found = files.list_files(files.join(place, "deep"))
    assert list(found) == ["x.json"]
    assert found["x.json"].size == 5
    assert found["x.json"].modified_ns > 10**18
    files.delete(target)
    files.delete(target)
    assert files.list_files(files.join(place, "deep")) == {}
    assert files.list_files(files.join(place, "never")) == {}


def test_what_fails_leaves_the_old_file(place):
    target = files.join(place, "x")
    write(target, "old")
    with pytest.raises(ZeroDivisionError), files.written_whole(target) as path:
        path.write_text("new")
        raise ZeroDivisionError
    assert read(target) == "old"
    assert list(files.list_files(place)) == ["x"]


def test_old_leftovers_of_killed_writers_are_removed(tmp_path):
    program = (
        "import os, sys; from tfcollective import files\n"
        "with files.written_whole(sys.argv[1]) as path: path.write_text('half'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "x")], check=True)
    (left,) = tmp_path.iterdir()
    (tmp_path / ".x.tmp").write_text("another's")
    for target in (tmp_path / "x", f"file://{tmp_path}/x"):
        left.write_text("half")
        write(target, "whole")
        assert left.exists()  # another process may be writing it
        os.utime(left, (1e9, 1e9))
        write(target, "whole")
        assert {path.name for path in tmp_path.iterdir()} == {"x", ".x.tmp"}


def test_writers_of_one_place_do_not_interfere(place):
    target = files.join(place, "x")
    with files.written_whole(target) as path, path.open("w") as file:
        file.write("the first, ")
        file.flush()
        write(target, "the second")
        assert read(target) == "the second"
        file.write("to the end")
    assert read(target) == "the first, to the end"


def test_a_file_deleted_meanwhile_hides_no_other(tmp_path, monkeypatch):
    """The evaluator would forget what it has evaluated."""
    for name in "abc":
        (tmp_path / name).write_text(name)
    scan = os.scandir

    @contextlib.contextmanager
    def deletes_b(directory):
        with scan(directory) as entries:
            found = list(entries)
        (tmp_path / "b").unlink(missing_ok=True)
        yield iter(found)

    monkeypatch.setattr(os, "scandir", deletes_b)
    assert set(files.list_files(tmp_path)) == {"a", "c"}


def test_a_full_disk_names_the_file(tmp_path):
    with pytest.raises(OSError, match=r"No space left on device: '.*x'") as raised, files.written_whole(tmp_path / "x"):
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"text")
    assert raised.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("renames", [0, 1])
def test_a_kill_between_renames_leaves_whole_files(renames, monkeypatch):
    url = f"stubborn://killed{renames}/x"
    write(url, "old")
    monkeypatch.setattr(Stubborn, "ends_after", renames)
    with pytest.raises(KeyboardInterrupt):
        write(url, "new")
    monkeypatch.setattr(Stubborn, "ends_after", None)
    assert read(url) == "old"
    write(url, "new")
    assert read(url) == "new"
    files.delete(url)
    with pytest.raises(FileNotFoundError):
        read(url)


def test_an_error_names_file_and_cause(tmp_path):
    with pytest.raises(OSError, match=r"^cannot write full://m/x: The DiskSpace quota of /model is exceeded$"):
        write("full://m/x", "text")
    with pytest.raises(FileNotFoundError, match="cannot read memory://m/nothing: there is no such file"):
        read("memory://m/nothing")


@pytest.mark.parametrize("url", ["nosuch://host/x", "abfs://container/x"])
def test_what_is_missing_is_said(url):
    with pytest.raises(ConfigError, match=r"install fsspec with what it needs for"):
        read(url)


def test_urls_and_paths(tmp_path):
    assert files.is_url("hdfs://host:8020/a")
    assert not files.is_url("/a/b")
    assert not files.is_url(tmp_path)
    assert files.join("s3://bucket/a/", "b", "c") == "s3://bucket/a/b/c"
    assert files.join("/a", "b") == Path("/a/b")
    assert files.as_place("s3://bucket/a/", "model_dir") == "s3://bucket/a"
    assert files.as_place("a/b", "model_dir") == Path("a/b")
    for spoilt in (Path("hdfs://host/a"), "hdfs:/host/a"):
        with pytest.raises(ConfigError, match="model_dir: a Path has taken a slash out of a URL: hdfs:/host/a"):
            files.as_place(spoilt, "model_dir")


def test_a_workspace_mirrors_additions_and_removals(tmp_path):
    url = f"memory://workspace-{tmp_path.name}"
    write(f"{url}/before/a", "a")
    write(f"{url}/before/b", "b")
    with files.Workspace(url) as space:
        space.fetch(["before/a"])
        assert (space.directory / "before/a").read_text() == "a"
        (space.directory / "before/a").unlink()
        (space.directory / "sub").mkdir()
        for name in ("checkpoint", "sub/new", ".hidden"):
            (space.directory / name).write_text(name)
        space.push()
        assert sorted(files.find_files(url)) == ["before/b", "checkpoint", "sub/new"]
        (space.directory / "sub/new").write_text("longer than it was")
        space.push()
        here = space.directory
    assert not here.exists()
    assert read(f"{url}/sub/new") == "longer than it was"


def test_a_workspace_here_is_the_directory_itself(tmp_path):
    with files.Workspace(tmp_path) as space:
        assert space.directory == tmp_path
        space.fetch(["nothing"])
        (tmp_path / "x").write_text("x")
        space.push()
    assert (tmp_path / "x").exists()


def test_a_growing_file_is_followed_in_place(tmp_path):
    url, here = f"memory://grows-{tmp_path.name}/x", tmp_path / "deep/x"
    write(url, "abc")
    files.append_tail(url, 3, here)
    inode = here.stat().st_ino
    write(url, "abcdef")
    files.append_tail(url, 6, here)
    files.append_tail(url, 6, here)
    assert here.read_text() == "abcdef"
    assert here.stat().st_ino == inode  # who has it open sees what is new


def test_data_are_fetched_once(tmp_path):
    url = f"memory://data-{tmp_path.name}/x.csv"
    write(url, "1;2")
    path = files.local_path(url)
    assert path.name == "x.csv"
    assert path.read_text() == "1;2"
    assert files.local_path(url) == path
    assert files.local_path(tmp_path) == tmp_path
