"""The token of a person who has signed in to another control plane. It is stored in a file, and renewed in time.

The file has mode 0600. The token is renewed in the last third of its lifetime, by one process at a time, since many
issuers accept a refresh token only once. If that fails, the token is used until it expires.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from poise.config import Door, Home
from poise.decoding import json_decoder
from poise.drivers.http import Connection
from poise.drivers.reach import reach
from poise.drivers.security import digest, ensure_home
from poise.drivers.sockets import check_shared
from poise.drivers.whole import write_whole
from poise.errors import Denied, InputError, PoiseError
from poise.model.reports.access import SignInReport

with contextlib.suppress(ModuleNotFoundError):
    import fcntl  # Windows lacks it

RENEWED_IN_LAST = 3
"""A token is renewed in this part of its lifetime: the last third."""


SECONDS = 15.0
"""Time limit in seconds of a renewal; the control plane waits at most 10 s for the issuer."""


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-in. `expires` is in seconds since 1970, `lasts` in seconds; an empty `refresh` cannot be renewed."""

    secret: str
    expires: float
    lasts: float
    refresh: str = ""

    @property
    def is_due(self) -> bool:
        return time.time() > self.expires - self.lasts / RENEWED_IN_LAST

    @property
    def is_over(self) -> bool:
        return time.time() >= self.expires


def elsewhere(home: Home) -> Door:
    """Return the control plane to sign in to. Raises InputError for the user's own home."""
    if home.elsewhere is None:
        raise InputError(
            "the control plane of your own home needs no sign-in: the home has the token of an admin",
            field=str(home.root),
            hint="set POISE_SOCKET or POISE_ADDRESS to sign in to another one",
        )
    if isinstance(home.elsewhere, Path):
        check_shared(home.elsewhere)
    return home.elsewhere


def signed_in(home: Home) -> Signed | None:
    """Return the sign-in at the control plane of a home; None if there is none. Raises `Denied` if others can read
    it.
    """
    path = _path(home)
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if os.name != "nt" and mode & 0o077:
        raise Denied("other users can read the token", field=str(path), hint=f"chmod 600 {path}")
    try:
        return json_decoder(Signed).decode(content)
    except msgspec.MsgspecError:
        raise Denied("the token is damaged", field=str(path), hint="`poise login`") from None


def keep(home: Home, signed: Signed) -> None:
    """Store a sign-in."""
    ensure_home(home)
    home.signed_in.mkdir(mode=0o700, exist_ok=True)
    write_whole(_path(home), msgspec.json.encode(signed), 0o600)


def forget(home: Home) -> None:
    """Remove the sign-in at the control plane of a home."""
    _path(home).unlink(missing_ok=True)


def signed_in_token(home: Home) -> str:
    """Return the token of the sign-in to the control plane of a home, renewed if it is due; empty without a sign-in.
    Raises `Denied` if it has expired and cannot be renewed.
    """
    found = signed_in(home)
    if found is None or not found.is_due:
        return found.secret if found is not None else ""
    with _alone(home):
        found = signed_in(home)
        if found is None or not found.is_due:
            return found.secret if found is not None else ""
        try:
            if not found.refresh:
                raise Denied("the issuer sent no refresh token")
            return _renewed(home, found)
        except (PoiseError, OSError) as error:
            if not found.is_over:
                return found.secret
            have = str(error)
            raise Denied("your sign-in has expired", code="E132", have=have, hint="`poise login`") from None


def _renewed(home: Home, found: Signed) -> str:
    """Renew a sign-in at the control plane that leads. Return its token. Raises `Denied`, and OSError."""
    body = msgspec.json.encode({"hash": digest(found.secret), "refresh": found.refresh})
    failure: PoiseError | OSError = OSError("no control plane answers")
    for turn in range(len(home.doors)):
        try:
            with Connection(reach(home, SECONDS, turn)) as connection:
                answer = connection.ask("POST", "/v1/sign-in", {"Content-Type": "application/json"}, body)
                content = answer.read()
        except (PoiseError, OSError) as error:
            failure = error
            continue
        if answer.status < 300:
            told = json_decoder(SignInReport).decode(content)
            until = time.time() + told.lasts
            keep(home, msgspec.structs.replace(found, expires=until, lasts=told.lasts, refresh=told.refresh))
            return found.secret
        failure = Denied(f"the sign-in was not renewed: status {answer.status}")
    raise failure


@contextlib.contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Prevent other processes of this user from renewing the sign-in at the same time."""
    if os.name == "nt":
        yield
        return
    handle = os.open(_path(home).with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _path(home: Home) -> Path:
    door = home.elsewhere
    named = str(door) if isinstance(door, Path) else home.addresses
    return home.signed_in / f"{digest(named)[:16]}.json"


__all__ = ["Signed", "elsewhere", "forget", "keep", "signed_in", "signed_in_token"]
