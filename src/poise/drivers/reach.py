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

from poise.config import Address, Home
from poise.drivers import sockets
from poise.errors import Denied, InputError

if TYPE_CHECKING:
    import ssl

AUTHORITY = "/v1/authority"
"""Where the certificate of the authority is given to anybody who asks."""

MAX_CERTIFICATE = 64 * 1024
FETCH_SECONDS = 15.0


def elsewhere(environment: Mapping[str, str]) -> Path | Address | None:
    """The control plane of somebody else that the environment names, if it names one."""
    shared, address = environment.get("POISE_SOCKET"), environment.get("POISE_ADDRESS")
    if shared and address:
        raise InputError(
            "the control plane is either behind a socket or on another machine",
            field="POISE_ADDRESS",
            have=address[:200],
            hint="`unset POISE_SOCKET`, or `unset POISE_ADDRESS`",
        )
    if address:
        return Address.parse(address)
    return Path(shared).expanduser().absolute() if shared else None


def reach(home: Home, timeout: float | None = None, turn: int = 0) -> socket.socket:
    """A connection to the control plane of a home, or to the one of several whose `turn` it is; raises OSError when
    nobody listens, `Denied` when it is not the one that was meant.
    """
    if not isinstance(home.elsewhere, Address):
        return sockets.connect(home.sockets[turn % len(home.sockets)], timeout)
    context = trusting(home.elsewhere)
    plain = socket.create_connection((home.elsewhere.host, home.elsewhere.port), timeout)
    try:
        return context.wrap_socket(plain, server_hostname=home.elsewhere.host)
    except BaseException:
        plain.close()
        raise


@functools.cache
def trusting(address: Address) -> "ssl.SSLContext":
    """Trusts the authority of an address, and no other. Fetched once by each process."""
    import ssl

    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE  # nothing is said that is not public
    question = f"GET {AUTHORITY} HTTP/1.1\r\nHost: poise\r\nConnection: close\r\n\r\n"
    with (
        socket.create_connection((address.host, address.port), FETCH_SECONDS) as plain,
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
    named = filter(None, environment.get("POISE_CONTROL", "").split(","))
    others = tuple(Path(name).expanduser().resolve() for name in named)
    return Home(home.root, others=others) if home.socket in others else home


def environment_home(environment: Mapping[str, str] = os.environ) -> Home:
    """The home that the environment names: POISE_HOME, or `~/.poise`; or what is elsewhere."""
    home = home_at(environment.get("POISE_HOME") or "~/.poise", environment)
    return Home(home.root, there) if (there := elsewhere(environment)) else home
