"""The way to a control plane: the socket of a home, or TLS to another machine.

Another machine's is known by its address, which ends with the fingerprint of its authority. The authority's certificate
is fetched from there, believed only if it has that fingerprint, and everything else is said to whom it has signed for.
"""

import functools
import os
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poise.config import Address, Door, Home
from poise.drivers import sockets
from poise.errors import Denied, InputError, PoiseError

if TYPE_CHECKING:
    import ssl

    from websockets.sync.client import ClientConnection

AUTHORITY = "/v1/authority"
"""Where the certificate of the authority is given to anybody who asks."""

STANDBY = "Poise-Standby-For"
"""The header of answers of a control plane that stands by; its value is the address of the one that leads."""

MAX_CERTIFICATE = 64 * 1024

ALONE_SECONDS, SILENCE_SECONDS = 15.0, 3.0
"""How long a connection to another machine may take; where there is another one to go to, it is not waited for."""

PING_SECONDS, CLOSE_SECONDS = 2.0, 1.0
"""How often one of several is asked whether it is there still, and how long a connection that is given up may take."""


def reach(home: Home, timeout: float | None = None, turn: int = 0) -> socket.socket:
    """A connection to the control plane of a home, or to the one of several whose `turn` it is; raises OSError when
    nobody listens, `Denied` when it is not the one that was meant.
    """
    door = door_of(home, turn)
    if isinstance(door, Path):
        return sockets.connect(door, timeout)
    context = trusting(door)
    longest = SILENCE_SECONDS if len(home.doors) > 1 else ALONE_SECONDS
    plain = socket.create_connection((door.host, door.port), longest if timeout is None else min(timeout, longest))
    sockets.notice_loss(plain)
    try:
        secured = context.wrap_socket(plain, server_hostname=door.host)
        secured.settimeout(timeout)
        return secured
    except BaseException:
        plain.close()
        raise


def channel_to(
    home: Home, path: str, secret: str, turn: int, headers: Mapping[str, str] | None = None
) -> "ClientConnection":
    """A WebSocket to the control plane of a home, or to the one of several whose turn it is: that one is left for the
    next when it stands still, or its machine is gone, of which nobody tells. Raises what `reach` does, and
    WebSocketException.
    """
    from websockets.sync.client import connect  # commands need none

    sock, watched = reach(home, turn=turn), dict[str, Any](ping_interval=None)
    if len(home.doors) > 1:
        _send_within(sock, SILENCE_SECONDS)
        watched = {
            "open_timeout": SILENCE_SECONDS,
            "ping_interval": PING_SECONDS,
            "ping_timeout": SILENCE_SECONDS,
            "close_timeout": CLOSE_SECONDS,
        }
    connection: ClientConnection = connect(
        f"ws://poise{path}",
        sock=sock,
        additional_headers={"Authorization": f"Bearer {secret}", **(headers or {})},
        compression=None,
        max_size=None,
        **watched,
    )
    return connection


def _send_within(sock: socket.socket, seconds: float) -> None:
    """Who does not read what is sent for so long is gone. (With TLS it is for TCP to find out.)"""
    if sys.platform == "win32":
        return  # a client that is suspended there is found out by keep-alive only
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), 0))
    if sys.platform == "linux" and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def door_of(home: Home, turn: int) -> Door:
    """Of the one of several whose turn it is."""
    return home.doors[turn % len(home.doors)]


@functools.cache
def trusting(address: Address) -> "ssl.SSLContext":
    """Trusts the authority of an address, and no other. Fetched once by each process."""
    import ssl

    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE  # nothing is said that is not public
    question = f"GET {AUTHORITY} HTTP/1.1\r\nHost: poise\r\nConnection: close\r\n\r\n"
    with (
        socket.create_connection((address.host, address.port), SILENCE_SECONDS) as plain,
        anybody.wrap_socket(plain) as channel,
    ):
        channel.sendall(question.encode("ascii"))
        answer = b""
        while len(answer) < MAX_CERTIFICATE and (piece := channel.recv(4096)):
            answer += piece
    certificate = answer.partition(b"\r\n\r\n")[2]
    try:
        found = fingerprint(certificate)
    except ValueError:
        found = "no certificate"
    if found != address.authority:
        raise Denied(
            "certificate fingerprint mismatch at this address",
            code="E134",
            field="POISE_ADDRESS",
            need=address.authority,
            have=found,
            hint="`poise status`, where the control plane runs, prints the whole address",
        )
    return ssl.create_default_context(cadata=certificate.decode("ascii"))


def names_at(address: Address) -> list[str]:
    """What the control plane at an address is called by its certificate; nothing where that cannot be told."""
    try:
        context = trusting.__wrapped__(address)  # one of its own, which asks for no name
        context.check_hostname = False
        with (
            socket.create_connection((address.host, address.port), SILENCE_SECONDS) as plain,
            context.wrap_socket(plain) as channel,
        ):
            told: Any = channel.getpeercert()
    except (OSError, PoiseError):
        return []
    return [name for _, name in told.get("subjectAltName", ())]


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate (PEM), in hexadecimal digits. Raises ValueError for what is none."""
    import hashlib
    import ssl

    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))).hexdigest()


def home_at(path: Path | str, environment: Mapping[str, str] = os.environ) -> Home:
    """The home at this path, with the others of which one leads where the environment names it among them."""
    home = Home(Path(path).expanduser().resolve())
    named = environment.get("POISE_CONTROL", "")
    others = tuple(_door(name) for name in map(str.strip, named.split(",")) if name)
    return Home(home.root, others=others) if home.socket in others else home


def _door(text: str) -> Door:
    """Raises InputError, also for a path that would be another one where agents and control planes run."""
    if "#" in text:
        return Address.parse(text, "POISE_CONTROL")
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise InputError(
            "a socket needs its full path, because agents and control planes run in another folder",
            field="POISE_CONTROL",
            need="/PATH/poise.sock, or HOST:PORT#FINGERPRINT",
            have=text[:200],
            hint=f"$PWD/{text[:200]}",
        )
    return path.resolve()


def environment_home(environment: Mapping[str, str] = os.environ) -> Home:
    """The home that the environment names: POISE_HOME, or `~/.poise`; or what is elsewhere: a socket that somebody
    shares, or the address of a control plane on another machine, or of several of which one leads.
    """
    home = home_at(environment.get("POISE_HOME") or "~/.poise", environment)
    shared, addresses = environment.get("POISE_SOCKET"), environment.get("POISE_ADDRESS")
    if shared and addresses:
        raise InputError(
            "the control plane is either behind a socket or on another machine",
            field="POISE_ADDRESS",
            have=addresses[:200],
            hint="`unset POISE_SOCKET`, or `unset POISE_ADDRESS`",
        )
    if addresses:
        return home_elsewhere(home.root, addresses)
    return Home(home.root, Path(shared).expanduser().absolute()) if shared else home


def home_elsewhere(root: Path, addresses: str) -> Home:
    """A home that uses a control plane on another machine, or several of which one leads: addresses with commas."""
    first, *others = [Address.parse(text) for text in addresses.split(",")]
    return Home(root, first, tuple(others))
