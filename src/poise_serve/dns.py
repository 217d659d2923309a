"""Looks up servers in DNS: the addresses of a host, and SRV records, which the standard library cannot read.

Addresses come from the system's resolver, with `/etc/hosts` and search domains, but without a time to live. SRV records
are asked of the name servers in `/etc/resolv.conf`, over UDP and, if the answer was truncated, over TCP. Their names
must be complete: search domains do not apply.
"""

import asyncio
import secrets
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

RESOLV_CONF = Path("/etc/resolv.conf")
PORT = 53

TIMEOUT = 3.0
"""Seconds to wait for one name server."""

MOST_SERVERS = 3
"""Maximum number of name servers to ask, as in the system's resolver."""

MOST_RECORDS = 1000

SRV, INTERNET = 33, 1
_HEADER = struct.Struct(">6H")
_RECORD = struct.Struct(">2HIH")
_SRV = struct.Struct(">3H")
_RESPONSE, _TRUNCATED, _RECURSE = 0x8000, 0x0200, 0x0100
_NO_SUCH_NAME = 3


class Server(NamedTuple):
    """A server of an SRV record. Lower `priority` first; `weight` within a priority. `ttl`: seconds it may be kept."""

    host: str
    port: int
    priority: int
    weight: int
    ttl: int


class Unresolved(Exception):
    """A look-up failed; the servers found before are still the best guess."""


async def addresses(host: str) -> list[str]:
    """Return the IP addresses of a host, sorted. Raises `Unresolved`."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unresolved(f"{host}: {error}") from None
    return sorted({str(one[4][0]) for one in found})


async def servers(name: str, name_servers: Sequence[tuple[str, int]] = ()) -> list[Server]:
    """Return the servers of SRV records, sorted; none if the name does not exist. `name_servers` replace those of the
    system. Raises `Unresolved`.
    """
    query, number = _query(name)
    failure = "no name server"
    for host, port in tuple(name_servers) or _name_servers():
        try:
            async with asyncio.timeout(TIMEOUT):
                answer = await _ask(host, port, query)
                if _is_truncated(answer):
                    answer = await _ask_over_tcp(host, port, query)
            return sorted(_read(answer, number))
        except (OSError, TimeoutError, ValueError, struct.error, IndexError, asyncio.IncompleteReadError) as error:
            failure = f"{host}: {str(error) or type(error).__name__}"
    raise Unresolved(f"{name}: {failure}")


def _name_servers() -> list[tuple[str, int]]:
    try:
        lines = RESOLV_CONF.read_text(errors="replace").splitlines()
    except OSError:
        return []
    words = [line.split() for line in lines]
    return [(told[1], PORT) for told in words if len(told) > 1 and told[0] == "nameserver"][:MOST_SERVERS]


def _query(name: str) -> tuple[bytes, int]:
    number = secrets.randbelow(1 << 16)
    labels = [label.encode("ascii") for label in name.rstrip(".").split(".")]
    if not all(0 < len(label) < 64 for label in labels):
        raise Unresolved(f"{name}: a label has 1 to 63 letters")
    asked = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return _HEADER.pack(number, _RECURSE, 1, 0, 0, 0) + asked + struct.pack(">2H", SRV, INTERNET), number


class _Answer(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, _: object) -> None:
        if not self.came.done():
            self.came.set_result(data)

    def error_received(self, error: Exception) -> None:
        if not self.came.done():
            self.came.set_exception(error)


async def _ask(host: str, port: int, query: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    transport, answer = await loop.create_datagram_endpoint(_Answer, remote_addr=(host, port))
    try:
        transport.sendto(query)
        return await answer.came
    finally:
        transport.close()


async def _ask_over_tcp(host: str, port: int, query: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(struct.pack(">H", len(query)) + query)
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        return await reader.readexactly(length)
    finally:
        writer.close()


def _is_truncated(answer: bytes) -> bool:
    return bool(_HEADER.unpack_from(answer)[1] & _TRUNCATED)


def _read(answer: bytes, number: int) -> list[Server]:
    """Read an answer. Raises ValueError, struct.error or IndexError if it is no answer to this query."""
    got, flags, questions, count, _, _ = _HEADER.unpack_from(answer)
    code = flags & 0xF
    if got != number or not flags & _RESPONSE:
        raise ValueError("not an answer to this query")
    if code == _NO_SUCH_NAME:
        return []
    if code:
        raise ValueError(f"the name server answered with code {code}")
    at = _HEADER.size
    for _ in range(questions):
        at = _name(answer, at)[1] + 4
    found = []
    for _ in range(min(count, MOST_RECORDS)):
        at = _name(answer, at)[1]
        kind, _, ttl, length = _RECORD.unpack_from(answer, at)
        at += _RECORD.size
        if kind == SRV:
            priority, weight, port = _SRV.unpack_from(answer, at)
            host = _name(answer, at + _SRV.size)[0]
            if host:  # "." means that there is no such service
                found.append(Server(host, port, priority, weight, ttl))
        at += length
    return found


def _name(answer: bytes, at: int) -> tuple[str, int]:
    """Return the name at this position, and the position behind it. Pointers only go back, so there is no loop."""
    labels: list[str] = []
    behind, limit = 0, at
    while True:
        length = answer[at]
        if length & 0xC0 == 0xC0:
            behind = behind or at + 2
            (target,) = struct.unpack_from(">H", answer, at)
            at = target & 0x3FFF
            if at >= limit:
                raise ValueError("a name that points forward")
            limit = at
        elif length & 0xC0:
            raise ValueError("a name of an unknown kind")
        elif not length:
            return ".".join(labels), behind or at + 1
        else:
            label = answer[at + 1 : at + 1 + length]
            if len(label) < length:
                raise ValueError("a name that is cut")
            labels.append(label.decode("ascii"))
            at += 1 + length


__all__ = ["Server", "Unresolved", "addresses", "servers"]
