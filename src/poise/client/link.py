"""The connection of a client to its control planes: which one to ask, when to retry, errors."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from poise.config import Address, Home
from poise.decoding import json_decoder
from poise.drivers.http import Answer, Connection
from poise.drivers.lock import is_held
from poise.drivers.reach import STANDBY, door_of, environment_home, home_at, names_at, reach
from poise.drivers.security import token_for
from poise.errors import (
    ErrorRecord,
    Fault,
    NotFound,
    NotLeading,
    PoiseError,
    SpecError,
    Unreachable,
    from_code,
    from_record,
)
from poise.model.reports.status import StatusReport

T = TypeVar("T")

PATIENCE = 15.0

SILENCE = 5.0
"""With several control planes: seconds without an answer before the client tries another one."""

HUSH = 60.0, 20.0
"""Seconds of silence before a stream counts as lost (keep-alives come every 15); with several control planes, fewer."""

JSON = "application/json"

LATE = 2.0
"""Maximum delay of a standby behind the leader, in seconds."""

THOUGHT = 60.0
"""Time limit, in seconds, of an answer for which the policy decides repeatedly."""


def current_home(path: Path | str | None = None) -> Home:
    """Return the home at this path, or at `POISE_HOME`, or `~/.poise`. Without a path, `POISE_SOCKET` or
    `POISE_ADDRESS` selects the control plane of another user or machine. `POISE_CONTROL` lists the sockets and
    addresses of several control planes with one leader; it applies if the home's socket is among them.
    """
    return environment_home() if path is None else home_at(path)


class _Error(msgspec.Struct):
    error: ErrorRecord


class Link:
    """The connection of a client to the control planes of a home. It tries them in turn until it finds the leader;
    `turn` counts the tries.
    """

    def __init__(self, home: Home, patience: float, token: str | None) -> None:
        self.home = home
        self.patience = patience
        self._token = token
        self._connection: Connection | None = None
        self.turn = 0
        self.several = len(home.doors) > 1

    def bearer(self) -> str:
        return token_for(self.home) if self._token is None else self._token

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def status(self) -> StatusReport:
        return self.call("GET", "/v1/status", StatusReport)

    def find_leader(self) -> None:
        """With several control planes, switch to the leader, or give up after `patience`."""
        deadline = time.monotonic() + self.patience
        while self.several and self.status().stands_by and time.monotonic() < deadline:
            self.close()
            self.turn += 1
            time.sleep(0.05)

    # --- calls -------------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, kind: type[T], body: Any = None, timeout: float = PATIENCE) -> T:
        data = encoded(body) if body is not None else None
        return json_decoder(kind).decode(self.ask(method, path, data, timeout))

    def ask_raw(self, method: str, path: str, data: bytes | None = None) -> bytes:
        """Send raw bytes and return the raw response."""
        return self.ask(method, path, data, THOUGHT, "application/octet-stream")

    def ask(self, method: str, path: str, data: bytes | None, timeout: float, media_type: str = JSON) -> bytes:
        if self.several:
            timeout = max(min(timeout, SILENCE), timeout - (PATIENCE - SILENCE))
        begun, deadline = time.monotonic(), None
        while True:
            failure: Exception | None = None
            try:
                response, content = self._exchange(method, path, data, timeout, media_type)
                if not self._may_ask_another(response, content):
                    break
            except OSError as error:
                failure = error
            self.close()
            if deadline is None:  # counted from the loss: the wait for the answer may have taken much longer
                alone = isinstance(failure, TimeoutError) and not self.several
                patience = LATE if failure is None and response.status == NotFound.status else self.patience
                deadline = patience + (begun if alone else time.monotonic())
            over = time.monotonic() >= deadline
            if failure is None and over:
                break
            if failure is not None and (over or not is_kept_alive(self.home)):
                raise unreachable(self.home, failure) from None
            self.turn += 1
            time.sleep(0.05)
        if response.status >= 400:
            raise _decode_error(content, response.status)
        return content

    def _may_ask_another(self, response: Answer, content: bytes) -> bool:
        """Return whether another control plane may have the answer. A standby may not have read yet what it lacks."""
        if response.status == NotFound.status:
            return self.several and response.headers.get(STANDBY.lower()) is not None
        if response.status != NotLeading.status:
            return False
        return self.another_leads(_decode_error(content, response.status).record)

    def another_leads(self, refused: ErrorRecord) -> bool:
        """Return whether this is a standby and there is, or soon will be, a leader to ask: `need` is its address."""
        return refused.code == NotLeading.default_code and (self.several or not refused.need)

    def _exchange(
        self, method: str, path: str, data: bytes | None, timeout: float, media_type: str
    ) -> tuple[Answer, bytes]:
        if self._connection is None:
            self._connection = Connection(reach(self.home, timeout, self.turn))
        self._connection.sock.settimeout(timeout)
        headers = self._headers(data, media_type)
        if isinstance(door_of(self.home, self.turn), Address) and media_type == JSON:  # hashes do not compress
            headers["Accept-Encoding"] = "gzip"
        response = self._connection.ask(method, path, headers, data)
        content = response.read()
        if response.is_last:
            self.close()
        if response.headers.get("content-encoding") == "gzip":
            import gzip

            content = gzip.decompress(content)
        return response, content

    def _headers(self, data: bytes | None, media_type: str = JSON) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.bearer()}"}
        return headers if data is None else headers | {"Content-Type": media_type}

    @contextlib.contextmanager
    def stream(
        self, path: str, turn: int | None = None, timeout: float | None = None, body: Any = None
    ) -> Iterator[Answer]:
        timeout = HUSH[self.several] if timeout is None else timeout
        data = None if body is None else encoded(body)
        with Connection(reach(self.home, timeout, self.turn if turn is None else turn)) as connection:
            response = connection.ask("GET" if data is None else "POST", path, self._headers(data), data)
            if response.status >= 400:
                raise error_of(response)
            yield response


def encoded(body: Any) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (UnicodeEncodeError, RecursionError) as error:
        raise SpecError(
            "this cannot be sent: strings must be UTF-8, and no value may contain itself",
            code="E101",
            have=ascii(str(error))[:120],
            hint="put binary data into a file",
        ) from None


def error_of(response: Answer) -> PoiseError:
    return _decode_error(response.read(), response.status)


def _decode_error(content: bytes, status: int) -> PoiseError:
    try:
        return from_record(json_decoder(_Error).decode(content).error, status)
    except msgspec.DecodeError:
        return Fault(f"the control plane answered {status}", have=content[:200].decode("utf-8", "replace"))


def failure_of(home: Home) -> PoiseError | None:
    """Return why this home's control plane could not start, if a person must act; else None."""
    try:
        return from_code(json_decoder(ErrorRecord).decode(home.failure.read_bytes()))
    except (OSError, msgspec.DecodeError):
        return None


def is_kept_alive(home: Home) -> bool:
    """Return whether retrying makes sense: a process may restart the control plane, or its socket still exists."""
    if home.elsewhere is not None:
        return isinstance(home.elsewhere, Address) or home.elsewhere.exists()
    return bool(home.others) or is_held(home.lock) or is_held(home.supervisor)


def unreachable(home: Home, error: Exception) -> PoiseError:
    if isinstance(home.elsewhere, Address):
        hint = "`poise status` where it runs; a firewall may be between"
        if "certificate is not valid for" in str(error) and (names := names_at(home.elsewhere)):
            hint = f"name it in POISE_ADDRESS as its certificate does: {', '.join(names)}"
        return Unreachable("no control plane answers", field=str(home.elsewhere), have=str(error), hint=hint)
    if home.elsewhere is not None:
        if not home.elsewhere.exists():
            return Unreachable(
                "no socket is there; a relative POISE_SOCKET is relative to the folder of the command",
                field=str(home.elsewhere),
                hint=f"`export POISE_SOCKET=$PWD/{home.elsewhere.name}` in its folder, or `unset POISE_SOCKET`",
            )
        hint = f"its owner runs `poise up --share {home.elsewhere}`; or `unset POISE_SOCKET`"
        return Unreachable("no control plane answers", field=str(home.elsewhere), have=str(error), hint=hint)
    return failure_of(home) or Unreachable(
        "no control plane answers", field=str(home.socket), have=str(error), hint="`poise up`, or set POISE_HOME"
    )


def part(name: str, lists: str = "poise ls --all") -> str:
    """Quote a name as a part of a path. An empty one, or one with a `/`, is refused: it would give another path. The
    command `lists` shows the names that there are.
    """
    if not name or "/" in name:
        what = "a name cannot contain `/`" if name else "the name is empty"
        raise SpecError(what, have=name, hint=f"`{lists}` lists the names")
    return quoted(name)


def quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")
