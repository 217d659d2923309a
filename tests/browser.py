"""Debian's headless Chromium, driven by the DevTools protocol over a pair of pipes."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DEBIAN = Path(sys.prefix) / "debian"
"""Where `make servers` unpacks Debian's packages."""

LIBRARIES = DEBIAN / "usr" / "lib" / "x86_64-linux-gnu"

NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
FLAGS = (
    *("--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--window-size=1400,900"),
)
ENVIRON = {
    "PATH": os.environ["PATH"],
    "LD_LIBRARY_PATH": ":".join(map(str, LIBRARIES.glob("**/"))),
    "LANG": "C.UTF-8",
}
ANSWER_SECONDS = 120
"""As everything on a busy machine: what a page asks for may be worked out at the lowest priority."""


class Browser:
    """One tab. `errors` holds what scripts threw and what could not be loaded."""

    def __init__(self, program: Path, profile: Path) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', program, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(commands, answers),
            env=ENVIRON | {"HOME": str(profile)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self.errors: list[str] = []
        self._loaded = False
        self._unread = b""
        self._numbers = itertools.count(1)
        self._tab: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._tab = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Its result; events that arrive before it are noted."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **self._tab}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path) -> None:
        """Returns when the page and its scripts have been loaded."""
        self.call("Page.navigate", url=page.as_uri())
        self.wait()

    def wait(self) -> None:
        """Returns when the page that a call has led to is loaded."""
        while not self._loaded:
            self._note(self._next())
        self._loaded = False

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, of a promise what it resolves to."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        for what in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=what, key=key, **text)
            text = {}

    def screenshot(self, to: Path) -> None:
        to.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def _note(self, event: dict[str, Any]) -> None:
        method = event.get("method")  # none: a late answer to what nobody waits for any more
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(event["params"]["exceptionDetails"]["exception"]["description"])
        elif method == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(event["params"]["entry"]["text"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], ANSWER_SECONDS)
            piece = os.read(self._from, 1 << 20) if ready else b""
            assert piece, "Chromium does not answer"
            self._unread += piece
        message, self._unread = self._unread.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def running() -> Iterator[Browser]:
    """Skips the test where there is no Chromium."""
    unpacked = DEBIAN / "usr" / "lib" / "chromium" / "chromium-headless-shell"
    program = unpacked if unpacked.exists() else next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("there is no Chromium: `make servers` fetches it from Debian")
    tried = subprocess.run([program, "--version"], env=ENVIRON, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"Chromium does not start: {tried.stderr.strip()}")
    with tempfile.TemporaryDirectory(prefix="poise-browser-", ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(program), Path(profile))
        try:
            yield browser
        finally:
            browser.close()
