"""Blocking calls to a store from any thread.

The libraries for stores use asyncio, but the owner and the writer of a log make blocking calls. So the loop has its own
thread, one for all links.
"""

import asyncio
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from poise.errors import InputError

WITHIN = 5.0
"""Time limit in seconds of a call, including connecting."""

Connection = TypeVar("Connection")
Answer = TypeVar("Answer")


class Link(ABC, Generic[Connection]):
    """A connection to a store, which is restored when it was lost. `name` is for messages."""

    def __init__(self, url: str) -> None:
        self.name = name_of(url)

    def ask(self, question: Callable[[Connection], Awaitable[Answer]], within: float = WITHIN) -> Answer:
        """Call `question` with the connection, and return its result. Raises `StoreAway`, or an error that a person
        must fix."""
        return asyncio.run_coroutine_threadsafe(self.answer(question, within), loop()).result()

    @abstractmethod
    async def answer(self, question: Callable[[Connection], Awaitable[Answer]], within: float = WITHIN) -> Answer:
        """The same as `ask`, on the loop."""

    @abstractmethod
    def close(self) -> None: ...


def name_of(url: str) -> str:
    """Return the URL without its secrets, for messages; only its scheme if its secrets cannot be told apart."""
    parts = urlsplit(url)
    if is_unclear(parts):
        return f"{parts.scheme}://…"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_unclear(parts: SplitResult) -> bool:
    """Return whether an `@` follows the servers: then an unescaped password was cut off at `/`, `?` or `#`."""
    return any("@" in part for part in (parts.path, parts.query, parts.fragment))


def check_whole(files: Iterable[str]) -> None:
    """Raise InputError for relative paths, which a control plane would resolve in another folder."""
    if near := [file for file in files if not Path(file).is_absolute()]:
        need = "absolute paths: the control plane runs in another folder"
        raise InputError("these paths must be absolute", field="--store", need=need, have=", ".join(near))


def why(error: BaseException) -> str:
    return "it takes too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    threading.Thread(target=made.run_forever, name="poise-database", daemon=True).start()
    return made
