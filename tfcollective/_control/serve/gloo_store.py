"""The store through which Horovod's processes find each other: Gloo's rendezvous over HTTP, as Horovod speaks it.

``PUT /SCOPE/KEY`` stores the body, ``GET`` gives it back or 404, ``DELETE`` says that a rank no longer needs the scope.
The protocol has no authentication. So a store has a port of its own, serves one generation of one job, knows only the
scopes of that job's world, and is bounded. Values are opaque bytes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from aiohttp import web

from tfcollective._base.log import get_logger
from tfcollective._control.messages import Refusal
from tfcollective._control.serve.http import HttpServer

_LOG = get_logger(__name__)
_MAX_KEY_LENGTH = 256
_MAX_VALUE_BYTES = 1 << 20
_MAX_BYTES = 64 << 20
_KEYS_PER_RANK = 8
_MAX_PROCESS_SETS = 256
_BODY_S = 5.0
# Connections that ask for nothing: how long each may stay, and how many in addition to one of each rank and scope.
_SILENCE_S = 10.0
_MAX_UNAUTHENTICATED = 256
# Horovod puts a process set's scopes next to the world's.
_PROCESS_SET = re.compile(r"_process_set_hash_\w{1,64}$")


class GlooStore:
    """Scopes of keys and bytes. Pure; not thread-safe.

    Args:
        scopes: the scopes of the world and how many ranks each has.
    """

    def __init__(self, scopes: Mapping[str, int]) -> None:
        self._sizes = dict(scopes)
        self._values: dict[str, dict[str, bytes]] = {}
        self._finished: dict[str, set[str]] = {}
        self._bytes = 0

    def put(self, scope: str, key: str, value: bytes) -> None:
        """Stores a value; Refusal for a scope that is not of this job, and when there is no room."""
        size = self._size_of(scope)
        keys = self._values.setdefault(scope, {})
        if not 0 < len(key) <= _MAX_KEY_LENGTH or len(value) > _MAX_VALUE_BYTES:
            raise Refusal(f"a key has 1 to {_MAX_KEY_LENGTH} characters, a value at most {_MAX_VALUE_BYTES} bytes")
        if key not in keys and len(keys) >= _KEYS_PER_RANK * size:
            raise Refusal(f"scope {scope} has {len(keys)} keys already")
        grown = self._bytes - len(keys.get(key, b"")) + len(value)
        if grown > _MAX_BYTES:
            raise Refusal(f"the store is full: {_MAX_BYTES} bytes")
        keys[key] = value
        self._bytes = grown

    def get(self, scope: str, key: str) -> bytes | None:
        """The value, or None if it has not come yet; Refusal for a scope that is not of this job."""
        self._size_of(scope)
        return self._values.get(scope, {}).get(key)

    def finish(self, scope: str, key: str) -> None:
        """A rank has found all others of the scope. When the last one has, the scope is empty again: the same processes
        may meet there once more."""
        size = self._size_of(scope)
        if scope not in self._values and scope not in self._sizes:
            return  # no rank has used it: there is nothing to remember
        finished = self._finished.setdefault(scope, set())
        if len(key) <= _MAX_KEY_LENGTH and len(finished) < size:
            finished.add(key)
        if len(finished) >= size:
            self._bytes -= sum(len(value) for value in self._values.pop(scope, {}).values())
            del self._finished[scope]

    def _size_of(self, scope: str) -> int:
        found = self._sizes.get(scope)
        if found is not None:
            return found
        suffix = _PROCESS_SET.search(scope)
        base = self._sizes.get(scope[: suffix.start()]) if suffix else None
        if base is None:
            raise Refusal(f"{scope!r} is no scope of this job")
        if scope not in self._values and len(self._values) >= _MAX_PROCESS_SETS + len(self._sizes):
            raise Refusal(f"there are {len(self._values)} scopes already")
        return base


class GlooStoreServer(HttpServer):
    """Serves a store, on a thread of its own, while the context manager is open.

    Args:
        scopes: as :class:`GlooStore` takes them.
        bind_host: the address of the interface that the ranks reach; other processes should not.
        silence: how long (s) a connection may last that asks for nothing.
    """

    def __init__(self, scopes: Mapping[str, int], bind_host: str, silence: float = _SILENCE_S) -> None:
        app = web.Application(client_max_size=_MAX_VALUE_BYTES)
        app.router.add_route("*", "/{scope}/{key}", self._serve)
        most = _MAX_UNAUTHENTICATED + sum(scopes.values())
        super().__init__(app, "the store for Horovod", bind_host, silence=silence, most=most)
        self._store = GlooStore(scopes)

    async def _serve(self, request: web.Request) -> web.Response:
        scope, key = request.match_info["scope"], request.match_info["key"]
        self.authenticated(request)
        try:
            if request.method == "PUT":
                self._store.put(scope, key, await asyncio.wait_for(request.read(), _BODY_S))
                return web.Response()
            if request.method == "GET":
                value = self._store.get(scope, key)
                return web.Response(status=404) if value is None else web.Response(body=value)
            if request.method == "DELETE":
                self._store.finish(scope, key)
                return web.Response()
        except Refusal as error:
            _LOG.warning("the store for Horovod refused a request from %s: %s", request.remote, error)
            return web.Response(status=403)
        except asyncio.TimeoutError:
            return web.Response(status=408)
        return web.Response(status=405)
