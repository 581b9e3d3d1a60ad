"""Rows travel to the one reader that has the key, piece by piece."""

import socket
import struct
import threading
from contextlib import ExitStack

import pytest

from tfcollective._base.errors import ProtocolError
from tfcollective._base.job_keys import new_key
from tfcollective._base.rows import stream as row_stream
from tfcollective._base.rows.stream import RowReader, RowWriter

KEY = new_key()


@pytest.fixture
def writer():
    with RowWriter(KEY) as made:
        yield made


def beside(act):
    """Runs a function on a thread; what it has raised is in the list, once it has ended."""
    errors = []

    def run():
        try:
            act()
        except (OSError, ProtocolError) as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


def test_pieces_come_whole_and_in_order(writer):
    pieces = [b"a", b"b" * 5_000_000, b"c"]

    def send():
        writer.accept()
        for piece in pieces:
            writer.send(piece)
        writer.finish()

    thread, errors = beside(send)
    with RowReader(writer.address, KEY) as reader:
        assert [reader.next() for _ in range(4)] == [*pieces, None]
    thread.join()
    assert errors == []


def test_a_connection_without_the_key_gets_nothing(writer):
    thread, errors = beside(lambda: (writer.accept(), writer.send(b"rows")))
    with pytest.raises(ProtocolError):
        RowReader(writer.address, new_key())
    host, _, port = writer.address.rpartition(":")
    with socket.create_connection((host, int(port))) as silent:
        assert len(silent.recv(32)) == 32
    with RowReader(writer.address, KEY) as reader:
        assert reader.next() == b"rows"
    thread.join()
    assert errors == []


def test_silent_connections_do_not_delay_the_reader(writer):
    host, _, port = writer.address.rpartition(":")
    with ExitStack() as opened:
        silent = [opened.enter_context(socket.create_connection((host, int(port)))) for _ in range(3)]
        thread, errors = beside(lambda: (writer.accept(), writer.send(b"rows")))
        assert len(silent[-1].recv(32, socket.MSG_WAITALL)) == 32
        with RowReader(writer.address, KEY) as reader:
            assert reader.next() == b"rows"
        assert [len(one.recv(32, socket.MSG_WAITALL)) for one in silent] == [32, 32, 0]
        assert [one.recv(1) for one in silent] == [b"", b"", b""]
    thread.join()
    assert errors == []


def test_a_source_without_the_key_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(bytes(32))
                connection.recv(64, socket.MSG_WAITALL)
                connection.sendall(bytes(32))

        thread, _ = beside(pretend)
        with pytest.raises(ProtocolError, match="not this job's source of rows"):
            RowReader(f"127.0.0.1:{listener.getsockname()[1]}", KEY)
        thread.join()


def test_a_cut_or_oversized_source_is_refused(writer):
    thread, _ = beside(writer.accept)
    reader = RowReader(writer.address, KEY)
    thread.join()
    writer._reader.sendall(struct.pack("!Q", row_stream.MAX_PIECE_BYTES + 1))
    with pytest.raises(ProtocolError, match="expected at most"):
        reader.next()
    writer.close()
    with pytest.raises(ProtocolError, match="before the last one"):
        reader.next()
    reader.close()


def test_a_piece_out_of_reason_is_not_sent(writer, monkeypatch):
    thread, _ = beside(writer.accept)
    with RowReader(writer.address, KEY):
        thread.join()
        monkeypatch.setattr(row_stream, "MAX_PIECE_BYTES", 3)
        with pytest.raises(ProtocolError, match="4 bytes"):
            writer.send(b"four")


def test_closing_ends_waits_of_the_writer(writer):
    thread, errors = beside(writer.accept)
    other = RowWriter(KEY)
    waits, more = beside(lambda: (other.accept(), [other.send(bytes(1 << 20)) for _ in range(100)]))
    with RowReader(other.address, KEY) as reader:
        reader.next()
        other.close()
        waits.join()
        writer.close()
        thread.join()
    assert len(errors) == 1
    assert len(more) == 1
