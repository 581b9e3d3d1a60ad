"""Lines for a process that may not read them."""

import os

from tfcollective._launch.platforms.commands import LineWriter


def test_everything_is_written_before_the_end():
    reader, writer = os.pipe()
    lines = LineWriter(writer).start()
    lines.write(b"x" * (1 << 20))
    lines.write(b"\n")
    lines.close()
    with open(reader, "rb") as file:
        assert file.read() == b"x" * (1 << 20) + b"\n"


def test_a_blocked_reader_delays_no_writer():
    reader, writer = os.pipe()
    lines = LineWriter(writer).start()
    for _ in range(3):
        lines.write(b"x" * (1 << 20))
    lines.close()
    os.close(reader)
