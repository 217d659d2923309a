"""Unix sockets by path, however long the path: a socket's name holds 107 bytes, a folder's descriptor is short."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


def listen(path: Path, backlog: int = 1024) -> socket.socket:
    """A listening socket that only its owner may connect to; replaces a stale one."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with _short(path) as name:
        before = os.umask(0o177)
        try:
            sock.bind(name)
        finally:
            os.umask(before)
    sock.listen(backlog)
    return sock


def connect(path: Path, timeout: float | None = None) -> socket.socket:
    """A connected socket; raises OSError when nobody listens."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        with _short(path) as name:
            sock.connect(name)
    except OSError:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
