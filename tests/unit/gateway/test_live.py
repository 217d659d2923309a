"""The configuration of a gateway, without the services: they are played."""

import asyncio
from pathlib import Path
from typing import Any, cast

from poise.model.servicefile import DeclaredService, compile_service
from poise_serve.live import Live
from poise_serve.model.changes import Document, Saved, State
from poise_serve.running import Running


class Played:
    """Stands for the running services: a change lasts until the test ends it."""

    def __init__(self) -> None:
        self.changes: dict[str, str] = {}
        self.models: dict[str, dict[str, str]] = {}
        self.versions: dict[str, str] = {}
        self.changing: set[str] = set()
        self.kept: list[Any] = []
        self.trials: dict[str, Any] = {}
        self.on_change = self.on_failure = lambda *_: None

    def check(self, declared: DeclaredService) -> None: ...

    def change(self, declared: DeclaredService) -> None:
        self.changing.add(declared.name)

    def remove(self, name: str) -> None:
        self.changing.add(name)

    def is_changing(self, name: str) -> bool:
        return name in self.changing

    def ends(self, why: str = "") -> None:
        """The change of `twice` is done, or has failed."""
        self.changing.discard("twice")
        if why:
            cast(Any, self.on_failure)("twice", why)
        else:
            cast(Any, self.on_change)("twice")


def document(model: str) -> Document:
    return {"kind": "service", "name": "twice", "model": f"app.py:{model}"}


def gateway(tmp_path: Path, model: str) -> tuple[Live, Played]:
    async def opened(front: object) -> Any:
        raise AssertionError("there are no upstreams")

    running, base = Played(), {"service twice": document(model)}
    saved = Saved(base, State(base))
    live = Live(saved, tmp_path / "applied", compile_service, cast(Running, running), {}, opened, {}, lambda _: None)
    return live, running


def apply(live: Live, model: str) -> None:
    asyncio.run(live.apply([document(model)], "ann"))


def serving(live: Live) -> list[str]:
    return [str(one["model"]) for one in live.report("").documents.values()]


def test_what_serves_stays_after_two_changes_of_which_the_second_fails(tmp_path: Path) -> None:
    """The first change is given up: its version has never served."""
    live, running = gateway(tmp_path, "One")
    apply(live, "Two")
    apply(live, "Three")
    assert serving(live) == ["app.py:Three"]
    running.ends("it cannot be loaded")
    assert serving(live) == ["app.py:One"]
    apply(live, "Two")
    running.ends()
    apply(live, "Three")
    running.ends("it cannot be loaded")
    assert serving(live) == ["app.py:Two"]


def test_a_service_that_was_removed_is_not_back_after_a_failure(tmp_path: Path) -> None:
    live, running = gateway(tmp_path, "One")
    apply(live, "Two")
    asyncio.run(live.remove("twice", "ann"))
    apply(live, "Three")
    running.ends("it cannot be loaded")
    assert serving(live) == []
