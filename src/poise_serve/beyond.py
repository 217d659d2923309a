"""Accepts replicas on other machines over TLS, as the control plane accepts nodes; they authenticate by attempt key.

The gateway listens there if the control plane of its home listens for other machines, on the same host. Like that one,
it gives the certificate of the home's certificate authority to any client (`drivers/reach.py`).
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import msgspec

from poise.config import Address, Endpoint, Home
from poise.decoding import json_decoder
from poise.drivers.reach import fingerprint
from poise.drivers.security import read_token, same_token, worker_key
from poise.drivers.sockets import notice_loss
from poise.model.messages import Attempt
from poise_serve.wire import LENGTH, decode_enter

ASKS = b"GET "
"""First bytes of a request for the certificate; no frame begins with them."""

MAX_ENTER = 16 * 1024
ENTER_SECONDS = 10.0
"""Timeout in seconds for the authentication of a connection."""

MOST_GUESTS = 256
"""Maximum number of connections that are not authenticated yet."""


class Host(Protocol):
    """A service, or a process that services share: replicas connect to it."""

    may_join: Callable[[str, int], bool]
    """Whether this job runs one of its replicas, and the epoch is not older than its latest attempt."""

    def guest(self, name: str) -> asyncio.Protocol:
        """Make the channel of a replica that has authenticated as `name`."""


class Beyond(NamedTuple):
    """Listener for other machines, with the certificate of the authority (PEM), and the token that keys derive from."""

    listening: socket.socket
    address: Address
    context: ssl.SSLContext
    authority: bytes
    token: str

    async def listen(self, host_at: Callable[[str], Host | None]) -> asyncio.Server:
        """Start listening. `host_at` returns the service or process for a socket path."""
        guests: set[_Guest] = set()
        return await asyncio.get_running_loop().create_server(
            lambda: _Guest(self, guests, host_at),
            sock=self.listening,
            ssl=self.context,
            ssl_handshake_timeout=ENTER_SECONDS,
        )


def beyond_of(home: Home) -> Beyond | None:
    """Make a listener if the home's control plane listens for other machines; otherwise return None."""
    try:
        text = json_decoder(Endpoint).decode(home.endpoint.read_bytes()).address
    except (OSError, msgspec.MsgspecError):
        return None
    if home.elsewhere is not None or not text:
        return None
    from poise.drivers.authority import ensure_authority, names_here, server_context  # slow import, rarely needed

    host = Address.parse(text).host
    place, family = "0.0.0.0", socket.AF_INET  # noqa: S104 — with TLS, and keys
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host)
        place, family = host, socket.AF_INET6 if found.version == 6 else socket.AF_INET
    listening = socket.create_server((place, 0), family=family, backlog=1024)
    notice_loss(listening, taken=True)
    authority = ensure_authority(home)
    context = server_context(home, names_here(host), "gateway")
    address = Address(host, listening.getsockname()[1], fingerprint(authority))
    return Beyond(listening, address, context, authority, read_token(home))


class _Guest(asyncio.Protocol):
    """A connection before authentication; after it, the connection becomes the replica's channel."""

    def __init__(self, beyond: Beyond, guests: "set[_Guest]", host_at: Callable[[str], Host | None]) -> None:
        self._beyond, self._guests, self._host_at = beyond, guests, host_at
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(ENTER_SECONDS, self._transport.abort)
        self._guests.add(self)
        if len(self._guests) > MOST_GUESTS:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        buffer, transport = self._buffer, self._transport
        buffer += data
        if transport is None or transport.is_closing() or len(buffer) < LENGTH.size:
            return
        if buffer.startswith(ASKS):
            transport.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + self._beyond.authority)
            transport.close()
            return
        end = LENGTH.size + LENGTH.unpack_from(buffer)[0]
        if end > MAX_ENTER:
            transport.abort()
        elif len(buffer) >= end:
            channel = self._entered(bytes(buffer[LENGTH.size : end]))
            if channel is None:
                transport.abort()
                return
            self._leave()
            transport.set_protocol(channel)
            channel.connection_made(transport)
            if rest := bytes(buffer[end:]):
                channel.data_received(rest)

    def _entered(self, frame: bytes) -> asyncio.Protocol | None:
        """Return the replica's channel if its service, attempt and key are valid; otherwise None."""
        try:
            enter = decode_enter.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        host = self._host_at(enter.service)
        if host is None or not host.may_join(enter.task.partition(".")[0], enter.epoch):
            return None
        if not same_token(enter.key, worker_key(self._beyond.token, Attempt(enter.task, enter.epoch))):
            return None
        return host.guest(enter.name)

    def connection_lost(self, _: Exception | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self._guests.discard(self)
        if self._timer is not None:
            self._timer.cancel()


__all__ = ["Beyond", "beyond_of"]
