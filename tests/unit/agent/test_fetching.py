"""Images that are fetched ahead, by a podman that a slow registry keeps waiting."""

import asyncio
from pathlib import Path

import pytest

from poise.agent import fetching
from poise.agent.fetching import Fetching
from poise.model.messages import Fetch


def test_a_slow_registry_does_not_keep_the_images_of_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    podman, pulled = tmp_path / "podman", tmp_path / "pulled"
    podman.write_text(f'#!/bin/sh\ncase "$*" in *endless*) exec sleep 3600;; esac\necho "$*" > {pulled}\n')
    podman.chmod(0o755)
    monkeypatch.setattr(fetching, "SPARE", 10**12)  # however full the disk is
    monkeypatch.setattr(fetching, "LONGEST_SECONDS", 0.3)
    endless, quick = (Fetch(image=f"registry.example.org/{name}:1", tenant="ann") for name in ("endless", "quick"))

    async def test() -> None:
        ahead = Fetching(str(podman), tmp_path)
        ahead.take(endless)
        while not pulled.exists():
            ahead.take(quick)
            monkeypatch.setattr(fetching, "AGAIN_SECONDS", 0.0)
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(test(), 20))
    assert "endless:1 was not fetched ahead within" in caplog.text
