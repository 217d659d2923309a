"""A recording of the dashboard: one file that needs no server, with all recorded data.

`Recording` reads a running dashboard as a browser does, from its creation until `page`. The file shows the same views,
and its slider shows any moment in between. Views of data that was not recorded, such as the state of a job at a past
moment, say so.
"""

import base64
import re
import socket
import threading
import time
from collections.abc import Iterable
from html import escape
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from poise.dashboard.app import ASSETS
from poise.drivers.http import Connection
from poise.errors import Fault

SECONDS = 150.0
"""Timeout of a request in seconds: a report takes long on a busy machine."""

_OF_ALL = ("timeline", "decisions", "training", "incidents", "rules", "services", "whoami")
_OF_EACH = {"job": ("job", "explanation", "log", "training"), "node": ("profile", "decisions")}

_IMPORT = re.compile(r'(?<=from ")\.{1,2}/[\w./-]+(?=")|(?<=import ")\.{1,2}/[\w./-]+(?=")')


class Recording:
    """Records the stream of a browser with this one-time link from now on."""

    def __init__(self, link: str) -> None:
        self._url, _, secret = link.partition("#link=")
        self._place = urlsplit(self._url)
        self._cookie = ""
        answer = self._ask("POST", "/session", msgspec.json.encode({"link": secret}))
        self._cookie = answer.headers["set-cookie"].partition(";")[0]
        self._changes: list[tuple[float, Any]] = []
        self._stream = self._connection()
        self._reading = threading.Thread(target=self._read, name="recording", daemon=True)
        self._reading.start()

    def heard(self) -> list[tuple[float, bytes]]:
        """Return the messages of the stream so far, with their times."""
        return [(when, bytes(told)) for when, told in self._changes]

    def page(self, title: str, jobs: Iterable[str], nodes: Iterable[str]) -> str:
        """Return the file as of now; the pages of `jobs` and `nodes` are included. Raises `Fault` if the stream sent
        nothing.
        """
        period = f"since={time.time() - 24 * 3600:.0f}&until={time.time():.0f}&pixels=4000&count=400"
        answers = {name: self._data(name, period if name == "timeline" else "count=200") for name in _OF_ALL}
        answers["spent"] = self._data("spent", "period=24h")
        for kind, names in (("job", jobs), ("node", nodes)):
            for one in names:
                for name in _OF_EACH[kind]:
                    answers[f"{name} {kind}={one}"] = self._data(name, f"{kind}={quote(one)}")
        for incident in msgspec.json.decode(answers["incidents"] or b"[]"):
            name = f"incident={incident['id']}"
            answers[f"incident {name}"] = self._data("incident", name)
        self.close()
        if not self._changes:
            raise Fault("the dashboard has told nothing", field=self._url, hint="`poise dashboard`")
        told = {"changes": self._changes, "answers": {name: msgspec.Raw(one) for name, one in answers.items() if one}}
        return page(title, msgspec.json.encode(told))

    def close(self) -> None:
        self._stream.sock.shutdown(socket.SHUT_RDWR)
        self._reading.join()
        self._stream.close()

    def _read(self) -> None:
        kind = b""
        try:
            for line in self._stream.ask("GET", "/stream", self._headers()):
                if line.startswith(b"event: "):
                    kind = line[7:].strip()
                elif line.startswith(b"data: ") and kind in (b"whole", b"change"):
                    self._changes.append((time.time(), msgspec.Raw(line[6:].strip())))
        except OSError:
            pass  # the dashboard has ended, or this was closed

    def _data(self, name: str, query: str) -> bytes:
        """Return the answer as JSON; empty if there is none."""
        try:
            answer = self._ask("GET", f"/data/{name}?{query}")
        except OSError:
            return b""
        return answer.content if answer.status == 200 else b""

    def _ask(self, method: str, path: str, content: bytes | None = None) -> "_Told":
        connection = self._connection()
        with connection:
            answer = connection.ask(method, path, self._headers(), content)
            return _Told(answer.status, answer.headers, answer.read())

    def _connection(self) -> Connection:
        return Connection(socket.create_connection((self._place.hostname or "", self._place.port or 0), SECONDS))

    def _headers(self) -> dict[str, str]:
        return {"Host": self._place.netloc, **({"Cookie": self._cookie} if self._cookie else {})}


class _Told(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    content: bytes


def page(title: str, recorded: bytes) -> str:
    """Return the front end as one file with the recorded JSON: `changes` (time, records by part) and `answers`."""
    html, style = ((ASSETS / name).read_text() for name in ("index.html", "site.css"))
    modules = {path.relative_to(ASSETS): path.read_text() for path in sorted(ASSETS.rglob("*.js"))}
    scripts = {PurePosixPath(path.as_posix()): text for path, text in modules.items()}
    theme = scripts.pop(PurePosixPath("theme.js"))
    scripts[PurePosixPath("place.js")] = scripts.pop(PurePosixPath("recorded/place.js"))
    imports = {f"poise/{path}": _address(path, text) for path, text in scripts.items() if path.name != "worker.js"}
    head = (
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n<script>{theme}</script>\n"
        f'<script type="importmap">{_in_html(msgspec.json.encode({"imports": imports}))}</script>\n'
        f'<script type="application/json" id="recorded">{_in_html(recorded)}</script>\n'
        '<script type="module">import "poise/recorded/answers.js"; import "poise/shell.js";</script>\n'
    )
    begin, end = html.index("<title>"), html.index("</head>")
    banner = f'<p class="by">{escape(title)}: what was recorded while it ran.</p>\n<div id="banner"'
    return html[:begin] + head + html[end:].replace('<div id="banner"', banner)


def _address(path: PurePosixPath, text: str) -> str:
    """Return a module as a data URL, with the names of other modules in place of their paths."""

    def named(match: "re.Match[str]") -> str:
        parts: list[str] = []
        for part in (path.parent / match[0]).parts:
            if part == "..":
                parts.pop()
            elif part != ".":
                parts.append(part)
        return f"poise/{'/'.join(parts)}"

    return "data:text/javascript;base64," + base64.b64encode(_IMPORT.sub(named, text).encode()).decode()


def _in_html(data: bytes) -> str:
    """Return JSON escaped so that it cannot end the element that contains it."""
    return data.decode().replace("<", "\\u003c")
