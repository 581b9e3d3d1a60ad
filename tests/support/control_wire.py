"""Connections to a coordinator by hand, and proxies that stand between it and its clients."""

import base64
import contextlib
import http.client
import re
import select
import socket
import ssl
import threading

from time_limits import within

from tfcollective._base import job_keys
from tfcollective._base.job_keys import derived_key
from tfcollective._control.wire.auth import NONCE, SIGNATURE, Welcome, hello_headers
from tfcollective._control.wire.protocol import HELLO_PATH

_ALL_PROTOCOLS = 3  # ETH_P_ALL
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{20,}={0,2}")


class ByHand:
    """One connection without TLS, on which a test sends arbitrary requests. A context manager."""

    def __init__(self, endpoint):
        self.http = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=within(20))
        self.http.connect()
        self.http.auto_open = 0

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.http.close()

    def greet(self, key):
        """The session of the connection."""
        headers = hello_headers(key)
        status, body, reply = self.ask(HELLO_PATH, b"", headers)
        assert status == 200
        return Welcome.from_reply(key, headers[NONCE], body, reply[SIGNATURE]).session(key)

    def ask(self, path, body=b"{}", headers=(), method="POST"):
        """Status, body and headers of the answer."""
        self.http.request(method, path, body, dict(headers))
        response = self.http.getresponse()
        return response.status, response.read(), response.headers


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

    def __init__(self, tls):
        self._tls = tls
        self._tls.setblocking(False)
        self._lock = threading.Lock()

    def recv(self, size):
        return self._retry(lambda: self._tls.recv(size))

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
    """A proxy with a certificate of its own, which reads what it passes on, encrypted once more or not."""

    def __init__(self, target, context, encrypts=True):
        super().__init__(target)
        self._context = context
        self._towards_server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if encrypts else None

    def _meet(self):
        return _OneAtATime(self._context.wrap_socket(super()._meet(), server_side=True))

    def _connect(self):
        if self._towards_server is None:
            return super()._connect()
        self._towards_server.check_hostname, self._towards_server.verify_mode = False, ssl.CERT_NONE
        return _OneAtATime(self._towards_server.wrap_socket(super()._connect()))


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
