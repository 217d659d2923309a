"""How a store is asked, from any thread.

Libraries that reach one speak asyncio; owner and writer of a log wait. So the loop has a thread of its own, one for all
links.
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
"""Seconds that a question may take, connecting included."""

Connection = TypeVar("Connection")
Answer = TypeVar("Answer")


class Link(ABC, Generic[Connection]):
    """What it is connected by is made again where it was lost. `name` is for messages."""

    def __init__(self, url: str) -> None:
        self.name = name_of(url)

    def ask(self, question: Callable[[Connection], Awaitable[Answer]], within: float = WITHIN) -> Answer:
        """What the question makes of the connection. Raises `StoreAway`, or what a person has to see to."""
        return asyncio.run_coroutine_threadsafe(self.answer(question, within), loop()).result()

    @abstractmethod
    async def answer(self, question: Callable[[Connection], Awaitable[Answer]], within: float = WITHIN) -> Answer:
        """The same, on the loop."""

    @abstractmethod
    def close(self) -> None: ...


def name_of(url: str) -> str:
    """The URL without its secrets, for messages; no more than its scheme where nobody can tell what is one."""
    parts = urlsplit(url)
    if is_unclear(parts):
        return f"{parts.scheme}://…"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_unclear(parts: SplitResult) -> bool:
    """Whether there is an `@` behind the servers: then a password ends what was taken for them, at `/`, `?` or `#`."""
    return any("@" in part for part in (parts.path, parts.query, parts.fragment))


def check_whole(files: Iterable[str]) -> None:
    """Raises InputError where a control plane would not find one: it runs in another folder than whoever names them."""
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
