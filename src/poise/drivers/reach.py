"""Connects to a control plane: through the socket of a home, or over TLS to another machine.

A remote control plane's address ends with the fingerprint of its certificate authority. The authority's certificate is
fetched from there and trusted only if it has that fingerprint. All further traffic requires a server certificate that
this authority has signed.
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
"""The public path of the authority's certificate."""

STANDBY = "Poise-Standby-For"
"""The header in answers of a standby control plane; its value is the address of the leader."""

MAX_CERTIFICATE = 64 * 1024

ALONE_SECONDS, SILENCE_SECONDS = 15.0, 3.0
"""Timeouts in seconds for connecting to another machine: with one control plane, and with several."""

PING_SECONDS, CLOSE_SECONDS = 2.0, 1.0
"""Ping interval if there are several control planes, and the time limit for closing an abandoned connection."""


def reach(home: Home, timeout: float | None = None, turn: int = 0) -> socket.socket:
    """Connect to the control plane of a home; with several, to the one whose `turn` it is. Raises OSError if there is
    no listener, and `Denied` if it is not the expected one.
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
    """Open a WebSocket to the control plane of a home. With several, it goes to the one whose turn it is, and timeouts
    detect a hung control plane or a lost machine, so that the caller can try the next. Raises as `reach`, and
    WebSocketException.
    """
    from websockets.sync.client import connect  # most commands do not need it

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
    """Set a timeout for a peer that does not read sent data. (With TLS, TCP detects it.)"""
    if sys.platform == "win32":
        return  # a suspended client is detected there by keepalive only
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), 0))
    if sys.platform == "linux" and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def door_of(home: Home, turn: int) -> Door:
    """Return the control plane's endpoint; with several, the one whose turn it is."""
    return home.doors[turn % len(home.doors)]


@functools.cache
def trusting(address: Address) -> "ssl.SSLContext":
    """Return a context that trusts only the authority of an address. Each process fetches it once."""
    import ssl

    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE  # only public data is exchanged
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
    """Return the names in the certificate of the control plane at an address; empty if they are unavailable."""
    try:
        context = trusting.__wrapped__(address)  # a separate context that does not check names
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
    """Return the SHA-256 of a certificate (PEM) in hexadecimal digits. Raises ValueError if it is malformed."""
    import hashlib
    import ssl

    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))).hexdigest()


def home_at(path: Path | str, environment: Mapping[str, str] = os.environ) -> Home:
    """Return the home at this path, with its peers if POISE_CONTROL lists it among several control planes."""
    home = Home(Path(path).expanduser().resolve())
    named = environment.get("POISE_CONTROL", "")
    others = tuple(_door(name) for name in map(str.strip, named.split(",")) if name)
    return Home(home.root, others=others) if home.socket in others else home


def _door(text: str) -> Door:
    """Parse an address or a path. Raises InputError, also for a relative path, which agents would resolve
    differently."""
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
    """Return the home that the environment names: POISE_HOME, or `~/.poise`; or a control plane elsewhere: a shared
    socket, or the addresses of one or several control planes on other machines.
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
    """Return a home that uses one or several control planes on other machines; addresses are separated by commas."""
    first, *others = [Address.parse(text) for text in addresses.split(",")]
    return Home(root, first, tuple(others))
