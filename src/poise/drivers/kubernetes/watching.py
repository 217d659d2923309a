"""Keep a copy of a collection of an API server up to date: a list, then a watch from its version, repeated.

A copy is never assumed to stay correct:

* a watch that ends with 410 restarts with a list, and so does one that ends at once without an event (some servers
  answer so instead of 410);
* bookmarks advance the version while nothing changes, so that it does not expire;
* a busy server (429) is retried after the delay that it names, an unreachable one with growing pauses;
* every few minutes the whole list is read again, since a deletion event may have been lost.

While the server is unreachable, the copy stays as it was.
"""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from poise.decoding import json_decoder
from poise.drivers.kubernetes.api import Api, Away, Refused
from poise.drivers.kubernetes.objects import Known

T = TypeVar("T", bound=Known)

Changes = Mapping[tuple[str, str], T | None]
"""The changes of a collection, by namespace and name: the current object, or None if it was deleted."""

PAGE = 500
WATCH_SECONDS = 300.0
"""Duration of a watch; then the server ends it, and the next one continues from there."""

SILENCE_SECONDS = 150.0
"""A watch without data for this long is broken: servers send a bookmark about every minute."""

ANEW_SECONDS = 600.0
"""Interval between full lists."""

SOON_SECONDS = 1.0
"""A watch that ends within this time without an event counts as failed."""

PAUSES = (0.5, 30.0)
"""Seconds between retries while the server is unreachable: the first and the longest."""

_log = logging.getLogger("poise.kubernetes")


class Listed(msgspec.Struct, Generic[T], frozen=True):
    metadata: dict[str, msgspec.Raw]
    items: tuple[T, ...] | None = None


class Change(msgspec.Struct, frozen=True):
    """An event of a watch; its `type` determines how the object is decoded."""

    type: str
    object: msgspec.Raw


class Versioned(msgspec.Struct, frozen=True):
    metadata: dict[str, msgspec.Raw] = {}
    code: int = 0
    message: str = ""


class Gone(Exception):
    """The version to watch from is no longer available."""


class Watched(Generic[T]):
    """The objects under `path` that `query` selects, by namespace and name. `ticks` is a monotonic clock."""

    def __init__(
        self,
        api: Api,
        path: str,
        kind: type[T],
        query: Mapping[str, str] | None = None,
        ticks: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called, by the thread of the watch, after each change of the copy."""
        self._api, self._path, self._query, self._ticks = api, path, dict(query or {}), ticks
        self._changed = changed
        self._object = json_decoder(kind)
        self._list: msgspec.json.Decoder[Listed[T]] = json_decoder(Listed[kind])  # type: ignore[valid-type]
        self._lock = threading.Lock()
        self._items: dict[tuple[str, str], T] = {}
        self._news: dict[tuple[str, str], T | None] | None = None  # None: nobody asks for changes
        self._version = ""
        self._listed_at = -ANEW_SECONDS
        self._heard_at: float | None = None
        self._ending = threading.Event()
        self._failed = 0
        self.why = ""
        """The last reason why the server gave no answer."""

    def items(self) -> list[T]:
        with self._lock:
            return list(self._items.values())

    def news(self) -> Changes[T]:
        """Return the changes since the last call; the first call returns all objects."""
        with self._lock:
            found, self._news = self._news, {}
            return dict(self._items) if found is None else found

    def age(self) -> float:
        """Return the seconds since the server last answered; infinite before the first list."""
        heard = self._heard_at
        return float("inf") if heard is None else self._ticks() - heard

    @property
    def is_away(self) -> bool:
        """Whether the server has failed to answer more than once in a row."""
        return self._failed > 1

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"poise-watch{self._path}", daemon=True).start()

    def stop(self) -> None:
        self._ending.set()

    def step(self) -> float:
        """List, or watch until the server ends it. Returns the seconds to wait before the next step."""
        try:
            if not self._version or self._ticks() - self._listed_at > ANEW_SECONDS:
                self.list()
            self._watch()
        except Gone as gone:
            _log.info("%s is listed again: %s", self._path, gone)
            self._version = ""
            return self._pause()
        except Refused as refused:
            self.why = str(refused)
            if refused.status == 410:
                self._version = ""
            else:
                _log.warning("%s: %s", self._path, refused)
            return max(refused.after, self._pause())
        except (Away, msgspec.MsgspecError) as error:
            _log.warning("%s: %s", self._path, error)
            self.why = str(error)
            return self._pause()
        self._failed = 0
        return 0.0

    def list(self) -> None:
        """Read the whole list, page by page. If the list expires between pages, start over. Raises `Refused`; and
        `Away`, also if the answer is not such a list, as from a proxy that asks for a password.
        """
        found: dict[tuple[str, str], T] = {}
        after = ""
        while True:
            query = {**self._query, "limit": str(PAGE)} | ({"continue": after} if after else {})
            try:
                page = self._list.decode(self._api.raw(self._path, query))
            except msgspec.MsgspecError as error:
                raise Away(f"the answer is not a list of objects: {error}") from None
            except Refused as refused:
                if refused.status != 410 or not after:
                    raise
                found, after = {}, ""
                self._ending.wait(self._pause())
                continue
            for one in page.items or ():
                found[one.metadata.namespace, one.metadata.name] = one
            after = _text(page.metadata, "continue")
            if not after:
                break
        with self._lock:
            if self._news is not None:
                self._news.update(dict.fromkeys(self._items.keys() - found.keys()))
                self._news.update({key: one for key, one in found.items() if self._items.get(key) != one})
            self._items = found
        self._version = _text(page.metadata, "resourceVersion")
        self._listed_at = self._heard_at = self._ticks()
        self._changed()

    def _watch(self) -> None:
        seconds = WATCH_SECONDS * (0.8 + 0.4 * _RANDOM.random())
        query = {
            **self._query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(seconds)),
        }
        begun, heard = self._ticks(), 0
        with contextlib.closing(self._api.stream(self._path, query, SILENCE_SECONDS)) as lines:
            for line in lines:
                if self._ending.is_set():
                    return
                self._hear(_change.decode(line))
                heard += 1
        if not heard and self._ticks() - begun < SOON_SECONDS:
            raise Gone("its watch ended at once")
        self._heard_at = self._ticks()

    def _hear(self, change: Change) -> None:
        if change.type == "ERROR":
            status = _versioned.decode(change.object)
            if status.code == 410:
                raise Gone(status.message or "410")
            raise Refused(status.code, "Error", status.message)
        if change.type == "BOOKMARK":
            self._version = _text(_versioned.decode(change.object).metadata, "resourceVersion")
        else:
            one = self._object.decode(change.object)
            key = one.metadata.namespace, one.metadata.name
            with self._lock:
                if change.type == "DELETED":
                    self._items.pop(key, None)
                else:
                    self._items[key] = one
                if self._news is not None:
                    self._news[key] = self._items.get(key)
            self._version = one.metadata.resource_version
            self._changed()
        self._heard_at = self._ticks()
        self._failed = 0

    def _pause(self) -> float:
        """Return an exponential backoff with jitter, so that clients that were cut off together do not retry
        together.
        """
        pause = min(PAUSES[1], PAUSES[0] * 2.0**self._failed)
        self._failed = min(self._failed + 1, 10)
        return pause * (0.5 + _RANDOM.random() / 2)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                pause = self.step()
            except Exception:  # a thread that died silently would leave the copy stale
                _log.exception("%s: the watch failed", self._path)
                self._version, pause = "", PAUSES[1]
            self._ending.wait(pause)


_change, _versioned, _string = json_decoder(Change), json_decoder(Versioned), json_decoder(str)

_RANDOM = random.Random()  # noqa: S311 — only pauses are drawn


def _text(metadata: Mapping[str, msgspec.Raw], name: str) -> str:
    return _string.decode(metadata[name]) if name in metadata else ""
