"""The two servers as their attackers see them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import replace

from realcoll.meeting.control import join
from realcoll.meeting.host import Host
from realcoll.meeting.meeting_messages import LIMITS, SERVICE, TOLD, Join, Meet, Met
from simcoll.distributed.server.frames import FrameChannel, decode, encode, introduce
from simcoll.distributed.stores import Limits, TCPStore, wire
from simcoll.distributed.stores.wire import Verb

__all__ = ["DOORS", "MeetingDoor", "StoreDoor"]


def next_body(sock):
    """The next frame's body."""

    def exactly(count):
        data = b""
        while len(data) < count:
            part = sock.recv(count - len(data))
            if not part:
                raise ConnectionResetError("closed by the other side")
            data += part
        return data

    (length,) = struct.unpack(">I", exactly(4))
    return exactly(length)


def greeted(address, service, secret):
    """A bare socket that has said a correct hello."""
    sock = socket.create_connection(address, 10)
    try:
        introduce(FrameChannel(sock), service, secret, 10)
    except OSError:
        sock.close()
        raise
    return sock


class StoreDoor:
    """A TCPStore and its server."""

    request = bytes(encode(wire.StoreRequest(Verb.SET, keys=("k",), values=(b"v",))))

    def __init__(self, secret="", **limits):
        self.secret = secret
        self.store = TCPStore(
            "127.0.0.1", 0, is_master=True, secret=secret, limits=Limits(**limits)
        )
        self.address = ("127.0.0.1", self.store.port)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.store.close()

    def introduced(self, secret=None):
        return self.introduced_at(self.address, self.secret.encode() if secret is None else secret)

    @staticmethod
    def introduced_at(address, secret=b""):
        """A bare socket that has said a correct hello."""
        return greeted(address, wire.SERVICE, secret)

    def answers(self, sock):
        sock.sendall(self.request)
        return decode(next_body(sock), wire.ANSWERS).code == wire.Status.OK

    def works(self):
        self.store.set("probe", "1")
        with self.store.clone() as other:
            return other.get("probe") == b"1"


class MeetingDoor:
    """Three processes and the server where they meet."""

    request = bytes(encode(Meet("a", (3, 4), b"v", 60.0)))

    def __init__(self, secret="t", **limits):
        self.secret = secret
        self.host = Host(5, token=secret, limits=replace(LIMITS, **limits))
        self.address = self.host.address
        self.seats = [
            join(self.address, i, 5, token=secret, host=self.host if i == 0 else None)
            for i in range(3)
        ]
        self.count = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for seat in reversed(self.seats):
            seat.close()

    def introduced(self, secret=None):
        return self.introduced_at(self.address, self.secret.encode() if secret is None else secret)

    @staticmethod
    def introduced_at(address, secret=b"t"):
        return greeted(address, SERVICE, secret)

    def answers(self, sock):
        sock.sendall(encode(Join(3)) + encode(Meet("late", (3, 4), b"v", 0.1)))
        return isinstance(decode(next_body(sock), TOLD), Met)

    def works(self):
        self.count += 1
        name, found = f"probe {self.count}", []

        def meet(seat):
            with contextlib.suppress(Exception):
                found.append(seat.meet(name, b"x", 10, (0, 1, 2)).values)

        threads = [threading.Thread(target=meet, args=(seat,)) for seat in self.seats]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return found == [dict.fromkeys(range(3), b"x")] * 3


DOORS = [StoreDoor, MeetingDoor]
