"""Bytes that collectives carry and that a rank then reads as more than numbers: each piece is proved with the job key.

Connections between ranks prove the key when they are opened, but their frames are neither signed nor encrypted: who
can change packets could have a rank unpickle what he likes. So a seal travels first, of a fixed size: it proves the
length and the SHA-256 of what follows, which generation, process set and operation it is for, and which rank it is
from. Nothing is allocated by a length, and nothing is read, before that.
"""

from __future__ import annotations

from collections import Counter

from tfcollective._base import payload
from tfcollective._base.errors import ProtocolError
from tfcollective._base.job_keys import OBJECTS, derived_key
from tfcollective._runtime.communicator import Communicator
from tfcollective._runtime.members import Members

_PUBLIC_KEY = b"tfcollective without a key"


class SealedExchange:
    """Broadcasts and all-gathers of bytes. Ranks call the same ones in the same order, as all collectives.

    Args:
        job_key: of the job. None where it has none, in a world of one rank or of an engine that was started without
            our launcher: the seals then show damage, but prove nothing.
        job_id: its name.
    """

    def __init__(self, job_key: bytes | None, job_id: str) -> None:
        self._key = derived_key(job_key or _PUBLIC_KEY, OBJECTS, job_id)
        self._generation = 0
        self._counts: Counter[tuple[int, str]] = Counter()

    def enter(self, generation: int) -> None:
        """The world is that of this generation now."""
        self._generation = generation
        self._counts.clear()

    def broadcast(self, world: Communicator, members: Members, data: bytes, root: int, name: str) -> bytes:
        """The bytes of the member at place `root`.

        Args:
            world: the members' communicator.
            members: who takes part.
            data: this rank's; only the root's count.
            root: a place among the members.
            name: shown in messages.

        Raises:
            InvalidArgumentError: there are too many bytes.
            ProtocolError: what came is not what the root has sent; names it.
        """
        import numpy as np

        if world.size == 1:
            return data
        mine = world.rank == root
        sender = members.ranks[root]
        where = self._where(members, name)
        sent = payload.seal(data, self._key, [*where, sender]) if mine else bytes(payload.SEAL_BYTES)
        sent = world.broadcast(np.frombuffer(sent, np.uint8), root, name=f"{name}/seal").tobytes()
        self._count(members, name)
        seal = self._opened(sent, [*where, sender], name, sender)
        buffer = np.frombuffer(data, np.uint8) if mine else np.empty(seal.length, np.uint8)
        received = world.broadcast(buffer, root, name=name)
        return data if mine else _checked(received.tobytes(), seal, name, sender)

    def allgather(self, world: Communicator, members: Members, data: bytes, name: str) -> list[bytes]:
        """The bytes of all members, in their order. Arguments and errors as in :meth:`broadcast`."""
        import numpy as np

        if world.size == 1:
            return [data]
        where = self._where(members, name)
        mine = payload.seal(data, self._key, [*where, members.ranks[world.rank]])
        sent = world.allgather(np.frombuffer(mine, np.uint8).reshape(1, -1), name=f"{name}/seal")
        self._count(members, name)
        seals = [
            self._opened(one.tobytes(), [*where, sender], name, sender)
            for one, sender in zip(sent, members.ranks, strict=True)
        ]
        gathered = world.allgather(np.frombuffer(data, np.uint8), name=name)
        ends = np.cumsum([seal.length for seal in seals]).tolist()
        return [
            _checked(gathered[end - seal.length : end].tobytes(), seal, name, sender)
            for end, seal, sender in zip(ends, seals, members.ranks, strict=True)
        ]

    def _where(self, members: Members, name: str) -> list[object]:
        """Returns what the seals of the next operation of this name are bound to: those of an earlier one prove
        nothing.
        """
        number = members.process_set_id
        return [self._generation, number, name, self._counts[number, name]]

    def _count(self, members: Members, name: str) -> None:
        self._counts[members.process_set_id, name] += 1

    def _opened(self, sent: bytes, where: list[object], name: str, sender: int) -> payload.Seal:
        seal = payload.open_seal(sent, self._key, where)
        if seal is None:
            raise _forged(name, sender)
        return seal


def _checked(data: bytes, seal: payload.Seal, name: str, sender: int) -> bytes:
    if not seal.fits(data):
        raise _forged(name, sender)
    return data


def _forged(name: str, sender: int) -> ProtocolError:
    return ProtocolError(
        f"{name}: what came from rank {sender} is not what it has sent: its proof of the job key is wrong. Something "
        "between the hosts changes data (an attacker, a faulty network or memory), or the ranks called operations of "
        "this name in different orders. Nothing of it was used",
        peer=sender,
    )
