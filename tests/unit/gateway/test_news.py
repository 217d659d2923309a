"""What a gateway reports of its services to the control plane."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from poise.client import Client
from poise.errors import Fault
from poise.model.served import MAX_AT_ONCE, GatewayNews
from poise.model.servicefile import DeclaredService
from poise_serve.notes import Noted
from poise_serve.running import Running


def unreachable() -> Client:
    raise Fault("there is no control plane")


def begun(folder: Path, connect: Callable[[], Client], *jobs: tuple[str, str]) -> Running:
    """Return a gateway that takes these replicas over, by service."""
    for name, job in jobs:
        (folder / f"{name}.mark.json").write_bytes(msgspec.json.encode(Noted(jobs=[job])))
    for model in ("old.py", "new.py"):
        (folder / model).touch()
    return Running(folder, "mark", connect, {"folder": str(folder), "env": {}}, "ann", lambda said: None)


def service(name: str, model: str = "old.py") -> DeclaredService:
    return DeclaredService(name=name, model=f"{model}:answer")


def test_a_version_that_gets_no_requests_yet_is_not_reported(tmp_path: Path) -> None:
    over = threading.Event()

    def silent() -> Client:
        over.wait()
        return unreachable()

    async def reported() -> list[tuple[str, str]]:
        running = begun(tmp_path, silent, ("chat", "j1"), ("chat-v2", "j2"))
        await running.begin(service("chat"), required=False)
        running.change(service("chat", "new.py"))
        for _ in range(1_000):
            if len(running.kept) == 2:
                break
            await asyncio.sleep(0.01)
        assert len(running.kept) == 2
        found = [(one.service, one.job) for report in running.news() for one in report.services]
        running.stop()
        over.set()
        await running.stopped()
        await running.hang_up()
        return found

    assert asyncio.run(asyncio.wait_for(reported(), 20)) == [("chat", "j1")]


def test_many_services_take_several_reports(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(MAX_AT_ONCE + 2)]

    async def reported() -> list[int]:
        running = begun(tmp_path, unreachable, *((name, f"j{name}") for name in names))
        assert running.news() == [GatewayNews(gateway="mark")], "orders are asked for all the same"
        for name in names:
            await running.begin(service(name), required=False)
        found = [len(report.services) for report in running.news()]
        running.stop()
        await running.stopped()
        await running.hang_up()
        return found

    assert asyncio.run(asyncio.wait_for(reported(), 20)) == [MAX_AT_ONCE, 2]
