import os
import random
import threading
from pathlib import Path

import pytest
from time_limits import within

from tfcollective._launch.agent.output import Console, LineSplitter, OutputPump, Tail


def split(*data):
    splitter = LineSplitter()
    pieces = [piece for one in data for piece in splitter.feed(one)]
    return pieces, splitter.finish()


@pytest.mark.parametrize(
    ("data", "pieces", "rest"),
    [
        ([b""], [], b""),
        ([b"a\n"], [b"a\n"], b""),
        ([b"a", b"b\nc"], [b"ab\n"], b"c"),
        ([b"\n\n"], [b"\n", b"\n"], b""),
        ([b"1/2\r2/2\r\ndone"], [b"1/2\r", b"2/2\r\n"], b"done"),
        ([b"x\r", b"\n"], [b"x\r\n"], b""),  # one line end in two reads
        ([b"x\r", b"y\n"], [b"x\r", b"y\n"], b""),
        ([b"\r 5%", b"\r 9%"], [b"\r", b" 5%\r"], b" 9%"),
    ],
)
def test_pieces(data, pieces, rest):
    assert split(*data) == (pieces, rest)


def test_a_line_without_end_is_cut():
    pieces, rest = split(b"x" * 70000, b"y" * 70000)
    assert [len(piece) for piece in pieces] == [1 << 16, 1 << 16]
    assert b"".join(pieces) + rest == b"x" * 70000 + b"y" * 70000


@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_lost_however_the_stream_is_cut(seed):
    rng = random.Random(seed)
    data = bytes(rng.choice(b"ab\r\n") for _ in range(300))
    cuts = sorted(rng.randrange(300) for _ in range(40))
    parts = [data[start:end] for start, end in zip([0, *cuts], [*cuts, 300], strict=True)]
    pieces, rest = split(*parts)
    assert b"".join(pieces) + rest == data
    assert all(b"\n" not in piece[:-1] for piece in pieces)


def test_the_tail_keeps_last_lines_without_progress():
    tail = Tail()
    for index in range(30):
        tail.add(f"line {index}\n".encode())
        tail.add(b"50%\r")
        tail.add(b"\n")
    tail.add(b"\xff\n")
    assert len(tail.lines()) == 20
    assert tail.lines()[-2:] == ("line 29", "�")


def test_the_tail_omits_tensorflows_startup_messages():
    noise = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1.5 7 port.cc:153] oneDNN custom operations are on. You may see slightly different results",
        "2026-11-27 19:15:23.7: I tensorflow/core/platform/cpu_feature_guard.cc:182] This TensorFlow binary is",
        "To enable the following instructions: AVX2, in other operations, rebuild TensorFlow with the right flags.",
        "E0000 00:00:1.5 7 cuda_fft.cc:477] Unable to register cuFFT factory: Attempting to register factory",
        "2024-01-01: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT",
        "W0000 00:00:1.5 7 local_rendezvous.cc:404] Local rendezvous is aborting with status: INVALID_ARGUMENT: Bad",
        "\t [[{{node MatMul}}]]",
    )
    words = ("W0000 00:00:1.5 7 alloc.cc:1] Allocation exceeds 10% of free system memory.", "To enable it, rebuild")
    tail = Tail()
    for line in (*noise, *words):
        tail.add(f"{line}\n".encode())
    assert tail.lines() == words


def pump(data, *, prefix=b"[0]<stdout>: ", copy=None, tail=None):
    source, feed = os.pipe()
    shown, console = os.pipe()
    one = OutputPump(os.fdopen(source, "rb", buffering=0), Console(console), prefix, copy, tail)
    one.start()
    os.write(feed, data)
    os.close(feed)
    one.join(within(20))
    os.close(console)
    with os.fdopen(shown, "rb") as file:
        return file.read()


def test_lines_get_prefixes_and_files_raw_bytes(tmp_path):
    path, tail = tmp_path / "copy", Tail()
    shown = pump(b"one\n1/2\r2/2\ntwo", copy=path.open("wb", buffering=0), tail=tail)
    assert shown == b"[0]<stdout>: one\n[0]<stdout>: 1/2\r[0]<stdout>: 2/2\n[0]<stdout>: two\n"
    assert path.read_bytes() == b"one\n1/2\r2/2\ntwo"
    assert tail.lines() == ("one", "2/2", "two")


def test_an_unwritable_file_does_not_stop_output():
    with Path("/dev/full").open("wb", buffering=0) as full:
        assert pump(b"one\ntwo\n", prefix=b"", copy=full) == b"one\ntwo\n"


def test_a_pump_that_is_late_is_waited_for():
    source, feed = os.pipe()
    begin, tail = threading.Event(), Tail()

    class Late(OutputPump):
        def _run(self):
            begin.wait()
            super()._run()

    with Path("/dev/null").open("wb", buffering=0) as null:
        one = Late(os.fdopen(source, "rb", buffering=0), Console(null.fileno()), b"", None, tail)
        one.start()
        os.write(feed, b"the last word\n")
        os.close(feed)
        threading.Timer(0.2, begin.set).start()
        one.catch_up(0.01, within(20))
        assert tail.lines() == ("the last word",)


def test_a_stream_held_open_is_not_awaited():
    source, feed = os.pipe()
    with Path("/dev/null").open("wb", buffering=0) as null:
        one = OutputPump(os.fdopen(source, "rb", buffering=0), Console(null.fileno()), b"")
        one.start()
        one.catch_up(0.01, 3600.0)  # not so long
        os.close(feed)
        one.join(within(20))


def test_a_stream_being_filled_is_not_awaited():
    source, feed = os.pipe()
    closed = threading.Event()

    class AlwaysBehind(OutputPump):
        def _is_late(self):
            return True

    def fill():
        while not closed.is_set():
            os.write(feed, b"still here\n")
        os.close(feed)

    with Path("/dev/null").open("wb", buffering=0) as null:
        one = AlwaysBehind(os.fdopen(source, "rb", buffering=0), Console(null.fileno()), b"")
        one.start()
        threading.Thread(target=fill, daemon=True).start()
        one.catch_up(0.01, 3600.0)  # not so long
        closed.set()
        one.join(within(20))


def test_a_vanished_reader_does_not_stop_processes():
    reader, writer = os.pipe()
    os.close(reader)
    console = Console(writer)
    threads = [threading.Thread(target=console.write, args=(b"x\n",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within(20))
    assert not any(thread.is_alive() for thread in threads)
    os.close(writer)


def test_a_slow_nonblocking_reader_loses_nothing():
    reader, writer = os.pipe2(os.O_NONBLOCK)
    os.set_blocking(reader, True)
    data = bytes(range(256)) * 4096  # more than a pipe holds
    thread = threading.Thread(target=Console(writer).write, args=(data,))
    thread.start()
    found = b""
    while len(found) < len(data):
        found += os.read(reader, 1 << 16)
    thread.join(within(20))
    assert found == data
    os.close(reader)
    os.close(writer)
