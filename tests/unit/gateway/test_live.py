"""The configuration of a gateway, without the services: they are played."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from poise.model.servicefile import DeclaredService, compile_service
from poise.model.serving_upstreams import Front, compile_upstreams
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
        self.removed: list[str] = []
        self.trials: dict[str, Any] = {}
        self.on_trial = self.on_switch = self.on_change = self.on_failure = lambda *_: None

    def check(self, declared: DeclaredService) -> None: ...

    def prepare(self, declared: DeclaredService) -> None: ...

    async def begin(self, declared: DeclaredService, version: str) -> None:
        self.begun.append(declared.model)

    async def cancel_leftovers(self) -> None: ...

    def change(self, declared: DeclaredService) -> None:
        self.changing.append(declared.model)

    def remove(self, name: str) -> None:
        self.removed.append(name)

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


class PlayedUpstreams:
    """Stands for the upstreams: the URLs in use. `fails`: a change does not succeed. `then` is called during one."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.fails = False
        self.then: Any = lambda: None
        self.states: list[Any] = []

    async def change(self, front: Front, *_: object) -> None:
        self.then()
        if self.fails:
            raise RuntimeError("nobody has expected this")
        self.urls = [one.url for one in front.upstreams]

    def drain(self, *_: object, **__: object) -> None: ...


def compiled(document: Document) -> DeclaredService | Front:
    return compile_upstreams(document) if document["kind"] == "upstreams" else compile_service(document)


def fronting(*ports: int) -> Document:
    return {"kind": "upstreams", "upstreams": [{"name": f"u{port}", "url": f"http://h:{port}"} for port in ports]}


def gateway(tmp_path: Path, model: str, upstreams: PlayedUpstreams | None = None) -> tuple[Live, Played]:
    """A gateway that was started with this model, or that takes over from one that was."""

    async def opened(front: Front) -> Any:
        assert upstreams is not None, "there are no upstreams"
        await upstreams.change(front)
        return upstreams

    running, file = Played(), tmp_path / "applied"
    saved = restored(file, [document(model)], taken_over=True)
    live = Live(saved, file, compiled, cast(Running, running), {}, opened, {}, lambda _: None)
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


def test_a_change_that_fails_unexpectedly_can_be_made_again(tmp_path: Path) -> None:
    upstreams = PlayedUpstreams()
    live, running = gateway(tmp_path, "One", upstreams)
    asyncio.run(live.apply([fronting(1)], "ann"))
    both, upstreams.fails = [fronting(2), document("Two")], True
    with pytest.raises(RuntimeError):
        asyncio.run(live.apply(both, "ann"))
    with pytest.raises(RuntimeError):
        asyncio.run(live.undo("ann"))
    assert live.report("").documents == {"service twice": document("One"), "upstreams": fronting(1)}
    assert (running.changing, [entry.settled for entry in live.report("").history]) == ([], [False])
    upstreams.fails = False
    assert asyncio.run(live.apply(both, "ann")).changes
    assert (upstreams.urls, running.changing) == (["http://h:2"], ["app.py:Two"])


def test_upstreams_that_are_undone_are_asked_no_more(tmp_path: Path) -> None:
    upstreams = PlayedUpstreams()
    live, running = gateway(tmp_path, "One", upstreams)
    asyncio.run(live.apply([fronting(1)], "ann"))
    asyncio.run(live.undo("ann"))
    assert (upstreams.urls, running.removed) == ([], [])


def test_a_trial_that_ends_while_upstreams_change_has_its_outcome(tmp_path: Path) -> None:
    upstreams = PlayedUpstreams()
    live, running = gateway(tmp_path, "One", upstreams)
    asyncio.run(live.apply([document("One") | {"canary": {"model": "app.py:Two"}}], "ann"))
    running.ends()
    upstreams.then = lambda: cast(Any, running.on_trial)("twice", True)
    asyncio.run(live.apply([fronting(1)], "ann"))
    assert live.report("").documents == {"service twice": document("Two"), "upstreams": fronting(1)}


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
