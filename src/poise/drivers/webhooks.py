"""Delivers notices to webhooks over HTTP, and to commands of the home.

A webhook gets one POST with JSON. Its address is resolved once and then used as is, so that a name cannot lead
elsewhere after the check. Redirects are not followed. Unless its job is trusted, a webhook at a loopback, link-local or
private address is refused: it would let tenants reach targets that only the control plane can reach.
"""

import hashlib
import hmac
import ipaddress
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from poise import __version__

SECONDS = 10.0
"""Timeout in seconds of connecting and reading."""

COMMAND_SECONDS = 30.0
"""Time limit in seconds of a command."""

MOST_ANSWER = 64 * 1024
"""Maximum bytes of an answer to read."""

AGAIN = frozenset({408, 425, 429})
"""Statuses below 500 after which a notice is sent again."""

SIGNATURE = "Poise-Signature"

_NEVER_PUBLIC = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")))
"""Addresses that map to IPv4 addresses, which may be private."""


class Undelivered(Exception):
    """A notice was not accepted. `worth_retrying` is false if a retry cannot succeed."""

    def __init__(self, why: str, *, worth_retrying: bool = True) -> None:
        super().__init__(why)
        self.worth_retrying = worth_retrying


def post(url: str, body: bytes, notice: str, *, key: str = "", private: bool = False) -> None:
    """Send a notice to a webhook, which must answer with a status from 200 to 299. A `key` signs it. With `private`,
    its address may be private. Raises `Undelivered`.
    """
    import http.client  # it imports a mail parser, which a start should not wait for

    split = urlsplit(url)
    host, secure = split.hostname or "", split.scheme == "https"
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"poise/{__version__}",
        "Poise-Notice": notice,
        "Connection": "close",
    }
    if key:
        headers[SIGNATURE] = "sha256=" + hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
    try:
        port = split.port or (443 if secure else 80)
        found = address_of(host, port, private=private)
        connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
        with socket.create_connection((found, port), SECONDS) as raw:
            connection.sock = ssl.create_default_context().wrap_socket(raw, server_hostname=host) if secure else raw
            target = (split.path or "/") + (f"?{split.query}" if split.query else "")
            connection.request("POST", target, body, headers)
            answer = connection.getresponse()
            answer.read(MOST_ANSWER)
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Undelivered(f"{host} does not answer: {str(error) or type(error).__name__}") from None
    if not 200 <= answer.status < 300:
        again = answer.status >= 500 or answer.status in AGAIN
        raise Undelivered(f"{host} answered {answer.status} {answer.reason}", worth_retrying=again)


def address_of(host: str, port: int, *, private: bool) -> str:
    """Return an address of a host. Raises OSError, and `Undelivered` if one is private and that is not allowed."""
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not private and not all(map(is_public, found)):
        raise Undelivered(f"{host} is at a private address", worth_retrying=False)
    return found[0]


def is_public(address: str) -> bool:
    """Return whether an address is public: not loopback, link-local, private, multicast or reserved.

    >>> [is_public(of) for of in ("93.184.216.34", "127.0.0.1", "10.1.2.3", "::ffff:169.254.169.254")]
    [True, False, False, False]
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    if parsed.is_multicast or any(parsed.version == of.version and parsed in of for of in _NEVER_PUBLIC):
        return False
    return parsed.is_global


def run(argv: Sequence[str], body: bytes, told: dict[str, str]) -> None:
    """Run a command with a notice on its standard input, and the variables `told` in its environment. It must exit with
    0 in time. Raises `Undelivered`.
    """
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ} | told
    try:
        process = subprocess.Popen(  # noqa: S603 — the command is the operator's
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise Undelivered(f"`{argv[0]}` cannot be run: {error.strerror}", worth_retrying=False) from None
    try:
        process.communicate(body, COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        raise Undelivered(f"`{argv[0]}` did not end within {COMMAND_SECONDS:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise Undelivered(f"`{argv[0]}` ended with {process.returncode}")


def is_private_literal(host: str, private: Collection[str]) -> bool:
    """Return whether a host is evidently at a private address, without a look-up, and not in `private`."""
    if host in private:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return not is_public(host)
    except ValueError:
        return False
