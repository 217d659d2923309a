"""The HTTP proxy between this machine and an API server: that of the kubeconfig, or of the environment."""

import base64
import contextlib
import ipaddress
import socket
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from poise.errors import InputError

MAX_ANSWER = 64 * 1024
"""Most bytes of the headers with which a proxy answers."""


class Proxy(NamedTuple):
    """The address of a proxy, and the value of its `Proxy-Authorization` header, or an empty text."""

    host: str
    port: int
    authorization: str = ""

    def connect(self, host: str, port: int, seconds: float) -> socket.socket:
        """Return a connection to a server through the proxy. Raises `OSError`."""
        sock = socket.create_connection((self.host, self.port), seconds)
        try:
            there = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            lines = [f"CONNECT {there} HTTP/1.1", f"Host: {there}"]
            lines += [f"Proxy-Authorization: {self.authorization}"] if self.authorization else []
            sock.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):  # no byte more: the rest is that of the server
                byte = sock.recv(1)
                if not byte or len(answer) > MAX_ANSWER:
                    raise ConnectionError(f"the proxy {self.host}:{self.port} ends the connection")
                answer += byte
            status = answer.split(b"\r\n", 1)[0].decode(errors="replace")
            if status.split(" ")[1:2] != ["200"]:
                raise ConnectionError(f"the proxy {self.host}:{self.port} answers: {status}")
        except BaseException:
            sock.close()
            raise
        return sock


def find_proxy(scheme: str, host: str, configured: str, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for a server: the `configured` URL, else that of the environment; None if there is none. Raises
    `InputError` if its URL cannot be used.
    """
    name = f"{scheme}_proxy"
    found = configured
    if not found and not _is_local(host):
        found = environ.get(name.upper()) or environ.get(name) or ""
        if _is_excluded(host, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
            found = ""
    if not found:
        return None
    parts = urlsplit(found if "://" in found else f"http://{found}")
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        field = "proxy-url" if configured else name.upper()
        raise InputError("this proxy cannot be used", field=field, have=found, need="http://HOST:PORT", hint=_HINT)
    known = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return Proxy(parts.hostname, port, f"Basic {base64.b64encode(known.encode()).decode()}" if known else "")


_HINT = "`NO_PROXY` excludes a host"


def _is_local(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _is_excluded(host: str, listed: str) -> bool:
    """Whether `NO_PROXY` lists a host: by name, by the name of a domain, or by an address of its network."""
    for entry in filter(None, map(str.strip, listed.split(","))):
        name = entry.lstrip(".").lower()
        if entry == "*" or host == name or host.endswith(f".{name}"):
            return True
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                return True
    return False


__all__ = ["Proxy", "find_proxy"]
