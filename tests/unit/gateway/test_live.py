"""The configuration of a gateway, without the services: they are played."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from poise.model.servicefile import DeclaredService, compile_service
from poise_serve.live import Live, restored
from poise_serve.model.changes import Document
from poise_serve.running import Running


class Played:
    """Stands for the running services: a change lasts until the test ends it."""

    def __init__(self) -> None:
        self.changes: dict[str, str] = {}
        self.models: dict[str, dict[str, str]] = {}
        self.versions: dict[str, str] = {}
        self.begun: list[str] = []
        self.changing: list[str] = []
        self.kept: list[Any] = []
        self.trials: dict[str, Any] = {}
        self.on_trial = self.on_switch = self.on_change = self.on_failure = lambda *_: None

    def check(self, declared: DeclaredService) -> None: ...

    def prepare(self, declared: DeclaredService) -> None: ...

    async def begin(self, declared: DeclaredService, version: str) -> None:
        self.begun.append(declared.model)

    async def cancel_leftovers(self) -> None: ...

    def change(self, declared: DeclaredService) -> None:
        self.changing.append(declared.model)

    def remove(self, name: str) -> None: ...

    def switches(self) -> None:
        """The new version of `twice` serves."""
        cast(Any, self.on_switch)("twice")

    def ends(self, why: str = "") -> None:
        """The change of `twice` is done, or has failed."""
        if why:
            cast(Any, self.on_failure)("twice", why)
        else:
            cast(Any, self.on_change)("twice")


def document(model: str) -> Document:
    return {"kind": "service", "name": "twice", "model": f"app.py:{model}"}


def gateway(tmp_path: Path, model: str) -> tuple[Live, Played]:
    """A gateway that was started with this model, or that takes over from one that was."""

    async def opened(front: object) -> Any:
        raise AssertionError("there are no upstreams")

    running, file = Played(), tmp_path / "applied"
    saved = restored(file, [document(model)], taken_over=True)
    live = Live(saved, file, compile_service, cast(Running, running), {}, opened, {}, lambda _: None)
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


def test_a_gateway_that_takes_over_during_a_change_has_what_serves_and_goes_on_with_the_change(tmp_path: Path) -> None:
    live, _ = gateway(tmp_path, "One")
    apply(live, "Two")
    apply(live, "Three")
    again, running = gateway(tmp_path, "One")
    asyncio.run(again.start())
    assert (running.begun, running.changing) == (["app.py:One"], ["app.py:Three"])
    assert serving(again) == ["app.py:Three"]
    running.ends("it cannot be loaded")
    assert serving(again) == ["app.py:One"]


@pytest.mark.parametrize("ends", [False, True])
def test_a_gateway_that_takes_over_after_a_change_has_the_new_version(tmp_path: Path, ends: bool) -> None:
    live, running = gateway(tmp_path, "One")
    apply(live, "Two")
    running.switches()
    if ends:
        running.ends()
    again, running = gateway(tmp_path, "One")
    asyncio.run(again.start())
    assert running.begun == ["app.py:Two"]
    assert running.changing == ([] if ends else ["app.py:Two"])


def test_a_change_from_one_trial_to_another_keeps_the_new_trial(tmp_path: Path) -> None:
    live, running = gateway(tmp_path, "One")

    def tries(model: str) -> None:
        asyncio.run(live.apply([document("One") | {"canary": {"model": f"app.py:{model}"}}], "ann"))

    def canary() -> Any:
        return live.report("").documents["service twice"].get("canary")

    tries("Two")
    running.ends()
    tries("Three")
    cast(Any, running.on_trial)("twice", False)  # the change ends the first one
    assert canary() == {"model": "app.py:Three"}
    running.ends("it cannot be loaded")
    assert canary() is None, "the first trial is over"
    tries("Four")
    running.ends()
    cast(Any, running.on_trial)("twice", True)
    assert (serving(live), canary()) == (["app.py:Four"], None)
