"""What a gateway reports of its services to the control plane."""

import asyncio
import threading
from pathlib import Path

import msgspec

from poise.client import Client
from poise.errors import Fault
from poise.model.servicefile import DeclaredService
from poise_serve.notes import Noted
from poise_serve.running import Running


def test_a_version_that_gets_no_requests_yet_is_not_reported(tmp_path: Path) -> None:
    for name, job in (("chat", "j1"), ("chat-v2", "j2")):
        (tmp_path / f"{name}.mark.json").write_bytes(msgspec.json.encode(Noted(jobs=[job])))
    for model in ("old.py", "new.py"):
        (tmp_path / model).touch()
    over = threading.Event()

    def unreachable() -> Client:
        over.wait()
        raise Fault("there is no control plane")

    async def reported() -> list[tuple[str, str]]:
        base = {"folder": str(tmp_path), "env": {}}
        running = Running(tmp_path, "mark", unreachable, base, "ann", lambda said: None)
        await running.begin(DeclaredService(name="chat", model="old.py:answer"), required=False)
        running.change(DeclaredService(name="chat", model="new.py:answer"))
        for _ in range(1_000):
            if len(running.kept) == 2:
                break
            await asyncio.sleep(0.01)
        found = [(one.service, one.job) for one in running.news().services]
        running.stop()
        over.set()
        await running.stopped()
        await running.hang_up()
        assert len(running.kept) == 2
        return found

    assert asyncio.run(asyncio.wait_for(reported(), 20)) == [("chat", "j1")]
