"""The way to a control plane: the socket of a home, or TLS to another machine.

Another machine's is known by its address, which ends with the fingerprint of its authority. The authority's certificate
is fetched from there, believed only if it has that fingerprint, and everything else is said to whom it has signed for.
"""

import functools
import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from poise.config import Address, Door, Home
from poise.drivers import sockets
from poise.errors import Denied, InputError

if TYPE_CHECKING:
    import ssl

AUTHORITY = "/v1/authority"
"""Where the certificate of the authority is given to anybody who asks."""

MAX_CERTIFICATE = 64 * 1024

ALONE_SECONDS, SILENCE_SECONDS = 15.0, 3.0
"""How long a connection to another machine may take; where there is another one to go to, it is not waited for."""


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
            "another authority speaks for this address",
            code="E134",
            field="POISE_ADDRESS",
            need=address.authority,
            have=found,
            hint="`poise status`, where the control plane runs, prints the whole address",
        )
    return ssl.create_default_context(cadata=certificate.decode("ascii"))


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate (PEM), in hexadecimal digits. Raises ValueError for what is none."""
    import ssl

    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))).hexdigest()


def home_at(path: Path | str, environment: Mapping[str, str] = os.environ) -> Home:
    """The home at this path, with the others of which one leads where the environment names it among them."""
    home = Home(Path(path).expanduser().resolve())
    named = environment.get("POISE_CONTROL", "")
    others = tuple(_door(name) for name in filter(None, named.split(",")))
    return Home(home.root, others=others) if home.socket in others else home


def _door(text: str) -> Door:
    return Address.parse(text, "POISE_CONTROL") if "#" in text else Path(text.strip()).expanduser().resolve()


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
