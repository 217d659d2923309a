"""Unix sockets by path, however long the path: a socket's name holds 107 bytes, a folder's descriptor is short. And
what every connection to another machine needs: to end when that machine is gone.
"""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from poise.errors import InputError

GONE_SECONDS, ASKED = 5, 3
"""A machine that says nothing for so long is gone, when it was asked so often whether it is there."""

TAKEN_SECONDS = 10
"""As long as a node of another machine may be silent."""

LOOK_SECONDS = 0.005
"""Polling interval in seconds for a new socket while there is no listener."""


def listen(path: Path, backlog: int = 1024) -> socket.socket:
    """A listening socket that only its owner may connect to; replaces a stale one."""
    sock = _bound(path, socket.SOCK_STREAM)
    sock.listen(backlog)
    return sock


def listen_to_datagrams(path: Path) -> socket.socket:
    """Return a non-blocking datagram socket to which only its owner may send; replace a stale one."""
    return _bound(path, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)


def send(sock: socket.socket, data: bytes, path: Path) -> None:
    """Send a datagram to the socket there. Raises OSError."""
    with _short(path) as name:
        sock.sendto(data, name)


def _bound(path: Path, kind: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with _short(path) as name:
        before = os.umask(0o177)
        try:
            sock.bind(name)
        finally:
            os.umask(before)
    return sock


def made(path: Path) -> tuple[int, int] | None:
    """Return the identity of the socket at `path`, which changes with each new listener; None if there is no socket."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_ctime_ns


def check_shareable(path: Path) -> None:
    """Raise InputError if users other than the owner can create a socket at `path`. Such a socket would receive the
    tokens of clients that connect.
    """
    folder = path.parent
    try:
        state = folder.stat()
        here = path.lstat() if path.is_symlink() or path.exists() else None
    except OSError as error:
        raise InputError(
            f"a socket cannot be created there: {error.strerror}", field=str(path), hint=f"mkdir -m 755 {folder}"
        ) from None
    if state.st_mode & 0o022:
        raise InputError("other users could put their own socket there", field=str(folder), hint=f"chmod 755 {folder}")
    if here is not None and not stat.S_ISSOCK(here.st_mode):
        raise InputError("this path exists and is not a socket", field=str(path), hint="another name")


def check_shared(path: Path) -> None:
    """Raise InputError unless the folder of the socket exists and only its owner can create a socket there. Clients
    call this before they connect.
    """
    if not path.parent.exists():
        raise InputError(
            "no socket is there; a relative POISE_SOCKET is relative to the folder of the command",
            field=str(path),
            hint=f"`export POISE_SOCKET=$PWD/{path.name}` in its folder, or `unset POISE_SOCKET`",
        )
    check_shareable(path)


def share(path: Path) -> socket.socket:
    """A listening socket that every user of this machine may connect to; replaces a stale one."""
    check_shareable(path)
    try:
        sock = listen(path)
        path.chmod(0o666)
    except OSError as error:
        raise InputError(f"the socket cannot be created: {error.strerror}", field=str(path), hint="`ls -ld`") from None
    return sock


def connect(path: Path, timeout: float | None = None) -> socket.socket:
    """Return a connected socket. Raises OSError if there is no listener."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        with _short(path) as name:
            sock.connect(name)
    except OSError:
        sock.close()
        raise
    return sock


def notice_loss(sock: socket.socket, *, taken: bool = False) -> None:
    """Enable keepalive on a connection to another machine, or on all connections to a listening socket. A machine that
    has died or is cut off sends no close. The kernel closes the connection after `GONE_SECONDS` without an answer to
    its probes; with `taken`, also after `TAKEN_SECONDS` without acknowledgement of sent data.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE")  # noqa: B009 — macOS
    sock.setsockopt(socket.IPPROTO_TCP, idle, GONE_SECONDS - ASKED)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASKED)
    if taken:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * TAKEN_SECONDS)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
