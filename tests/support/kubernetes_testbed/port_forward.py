"""Port forwarding to pods, as the API server serves it: a websocket with two channels for each port, of which the first
carries data and the second an error."""

import asyncio
import ctypes
import os
import socket as sockets
import struct
import threading

from aiohttp import WSMsgType, web

PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = b"\x00", b"\x01"
_NEWNET = 0x40000000


async def serve(request: web.Request, netns: str, port: int) -> web.StreamResponse:
    """Until one side ends."""
    socket = web.WebSocketResponse(protocols=[PROTOCOL])
    await socket.prepare(request)
    number = struct.pack("<H", port)
    await socket.send_bytes(_DATA + number)
    await socket.send_bytes(_ERROR + number)
    try:
        inside = await asyncio.to_thread(_connect_in, netns, port)
        reader, writer = await asyncio.open_connection(sock=inside)
    except OSError as error:
        await socket.send_bytes(_ERROR + f"error forwarding port {port} to pod: {error}".encode())
        await socket.close()
        return socket
    back = asyncio.create_task(_send(reader, socket))
    try:
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[:1] == _DATA:
                writer.write(message.data[1:])
                await writer.drain()
    except (ConnectionError, asyncio.CancelledError):
        pass
    finally:
        back.cancel()
        writer.close()
    return socket


def _connect_in(netns: str, port: int) -> sockets.socket:
    """A connection to a port of a pod's loopback interface, as a kubelet opens it; from a thread that is given up."""
    made: list[sockets.socket | OSError] = []

    def connect() -> None:
        try:
            descriptor = os.open(f"/run/netns/{netns}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(descriptor)
            made.append(sockets.create_connection(("127.0.0.1", port), 5.0))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=connect, name="port-forward")
    thread.start()
    thread.join()
    (found,) = made
    if isinstance(found, OSError):
        raise found
    found.setblocking(False)
    return found


async def _send(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    try:
        while data := await reader.read(1 << 16):
            await socket.send_bytes(_DATA + data)
    except ConnectionError:
        pass
    await socket.close()
