"""Files on the real HDFS, by both its clients, and on S3 as moto's server has it."""

import os
import sys

import pytest

from tfcollective import files
from tfcollective._base.processes import spawn
from tfcollective.auxiliary_tasks._checkpoints import fetched, find_checkpoints

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(600)]


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anyone")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().makedirs("bucket", exist_ok=True)
        yield f"s3://bucket/{tmp_path.name}"
        s3fs.S3FileSystem.clear_instance_cache()
    finally:
        server.stop()


def write(place, data):
    with files.written_whole(place) as path:
        path.write_bytes(data)


@pytest.fixture(params=["hdfs", "webhdfs", "s3"])
def place(request, tmp_path):
    if request.param == "s3":
        return request.getfixturevalue("bucket")
    url = request.getfixturevalue("hdfs").url
    return url if request.param == "hdfs" else request.getfixturevalue("cluster").over_http(url)


def test_files_are_replaced_listed_and_removed(place, tmp_path):
    for data in (b"one", b"three"):
        write(f"{place}/run/x.json", data)
        with files.local_copy(f"{place}/run/x.json") as path:
            assert path.read_bytes() == data
    facts = files.list_files(f"{place}/run")["x.json"]
    assert facts.size == 5
    assert facts.modified_ns > 10**18
    assert list(files.find_files(place)) == ["run/x.json"]
    files.append_tail(f"{place}/run/x.json", 5, tmp_path / "tail")
    write(f"{place}/run/x.json", b"three four")
    files.append_tail(f"{place}/run/x.json", 10, tmp_path / "tail")
    assert (tmp_path / "tail").read_bytes() == b"three four"
    files.delete(f"{place}/run/x.json")
    assert files.list_files(f"{place}/run") == files.list_files(f"{place}/never") == {}
    with (
        pytest.raises(FileNotFoundError, match=rf"cannot read {place}/run/x\.json"),
        files.local_copy(f"{place}/run/x.json"),
    ):
        pass


def test_processes_start_after_using_file_systems(place):
    write(f"{place}/x", b"x")
    process = spawn([sys.executable, "-c", "print('here')"], dict(os.environ), None)
    said, _ = process.communicate(timeout=60)
    assert said == b"here\n"


def test_what_cannot_be_written_to_s3_is_named(bucket):
    with pytest.raises(OSError, match="cannot write s3://nosuch/x: "):
        write("s3://nosuch/x", b"")


def test_an_evaluator_finds_what_a_workspace_has_moved(bucket):
    with files.Workspace(bucket) as space:
        for name in ("model.ckpt-3.index", "model.ckpt-3.data-00000-of-00001", "checkpoint", "deep/events"):
            (space.directory / name).parent.mkdir(exist_ok=True)
            (space.directory / name).write_text(name)
        space.push()
    (found,) = find_checkpoints(bucket)
    assert found.step == 3
    with fetched(found) as here:
        assert [path.read_text() for path in here.files()] == [path.name for path in here.files()]
        assert len(here.files()) == 2
