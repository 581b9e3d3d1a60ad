"""Connections to a coordinator by hand, and proxies that stand between it and its clients."""

import base64
import contextlib
import re
import select
import socket
import ssl
import threading

from time_limits import within

from tfcollective._base import job_keys
from tfcollective._base.job_keys import derived_key
from tfcollective._control.wire.connection import client_context
from tfcollective._control.wire.greeting import Welcome
from tfcollective._control.wire.protocol import REPLY_HEAD, REQUEST_HEAD

_ALL_PROTOCOLS = 3  # ETH_P_ALL
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{20,}={0,2}")


class ByHand:
    """One TLS connection on which a test says what it likes. A context manager."""

    def __init__(self, endpoint):
        plain = socket.create_connection((endpoint.host, endpoint.port), timeout=within(20))
        self.tls = client_context().wrap_socket(plain)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.tls.close()

    def receive(self, count):
        """So many bytes."""
        data = b""
        while len(data) < count:
            part = self.tls.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def welcome(self, key):
        """What the coordinator says first."""
        return Welcome.read(key, self.receive)

    def greet(self, key):
        """Proves the key."""
        self.tls.sendall(self.welcome(key).client_proof(key))

    def ask(self, path, body=b"{}"):
        """Status and body of the answer."""
        self.tls.sendall(REQUEST_HEAD.pack(len(path), len(body)) + path.encode() + body)
        status, length = REPLY_HEAD.unpack(self.receive(REPLY_HEAD.size))
        return status, self.receive(length)

    def is_cut_off(self):
        """Waits for the end."""
        return is_cut_off(self.tls)


def is_cut_off(connection):
    """Waits for the end; a connection with something unread ends with a reset."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while connection.recv(1 << 16):
            pass
    return True


class Recorder:
    """A proxy that records the bytes of both directions. A context manager."""

    def __init__(self, target):
        self._target = (target.host, target.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()[:2]
        self.recorded = bytearray()
        self._open = []

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *unused):
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self):
        while True:
            try:
                client = self._meet()
                server = self._connect()
            except OSError:
                return
            self._open += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _meet(self):
        return self._listener.accept()[0]

    def _connect(self):
        return socket.create_connection(self._target)

    def _pass_on(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.recorded += data
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class _OneAtATime:
    """A TLS connection that one thread may read while another one writes; they must not use ssl's at the same time."""

    def __init__(self, tls, change):
        self._tls = tls
        self._change = change
        self._tls.setblocking(False)
        self._lock = threading.Lock()

    def recv(self, size):
        return self._change(self._retry(lambda: self._tls.recv(size)))

    def sendall(self, data):
        sent = 0
        while sent < len(data):
            sent += self._retry(lambda: self._tls.send(data[sent:]))  # noqa: B023  called at once

    def shutdown(self, how):
        self._tls.shutdown(how)

    def close(self):
        self._tls.close()

    def _retry(self, act):
        while True:
            with self._lock:
                try:
                    return act()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    descriptor = self._tls.fileno()
            if descriptor < 0:
                raise OSError("closed meanwhile")
            select.select([descriptor], [], [], 0.02)


class ManInTheMiddle(Recorder):
    """A proxy with a certificate of its own, which reads what it passes on, and may change it."""

    def __init__(self, target, context, change=lambda data: data):
        super().__init__(target)
        self._context = context
        self._change = change

    def _meet(self):
        return _OneAtATime(self._context.wrap_socket(super()._meet(), server_side=True), self._change)

    def _connect(self):
        return _OneAtATime(client_context().wrap_socket(super()._connect()), self._change)


class Sniffer:
    """Records all packets on an interface of this network namespace. Needs root. A context manager."""

    def __init__(self):
        self.recorded = bytearray()
        self._ended = threading.Event()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._ended.set()
        self._thread.join(within(10))
        self._socket.close()

    def _run(self):
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                self.recorded += self._socket.recv(1 << 17)


def with_base64(data):
    """The bytes, followed by the decoded base64 in them: pickled functions travel as base64 in JSON."""
    return data + b"".join(_decoded(found) for found in _BASE64.findall(data))


def _decoded(text):
    return base64.b64decode(text + b"=" * (-len(text) % 4)) if len(text) % 4 != 1 else b""


def forms_of_keys(jobs):
    """All keys of these jobs (key by name), and those derived from them, in the forms in which they could be sent."""
    purposes = [value for name, value in vars(job_keys).items() if name.isupper()]
    for key in jobs.values():
        for one in (key, *(derived_key(key, purpose, name) for purpose in purposes for name in ("", *jobs))):
            yield from (one, one.hex().encode(), one.hex().upper().encode(), base64.b64encode(one), repr(one).encode())


def keys_in(data, jobs):
    """The forms of keys that are among the bytes."""
    everything = with_base64(bytes(data))
    return [form for form in forms_of_keys(jobs) if form in everything]
