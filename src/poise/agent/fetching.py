"""Fetches container images before the work that needs them starts: one at a time, and only if the disk has room."""

import asyncio
import contextlib
import logging
import os
import shutil
import time
from pathlib import Path

from poise.drivers.containers import fetching
from poise.drivers.tidy import SPARE
from poise.model.messages import Fetch

AGAIN_SECONDS = 600.0
"""An image is fetched at most once in this time, whether or not that succeeds."""

LONGEST_SECONDS = 1800.0
"""Time limit of one image: a slow registry would keep those of all tenants waiting."""

MOST_KNOWN = 256

_log = logging.getLogger("poise.agent")


class Fetching:
    """The images that this node fetches."""

    def __init__(self, podman: str, registries: Path) -> None:
        self._podman = podman
        self._registries = registries
        self._asked: dict[Fetch, float] = {}
        self._task: asyncio.Task[None] | None = None

    def take(self, fetch: Fetch) -> None:
        """Fetch an image, unless another fetch is in progress or this image was fetched recently."""
        now = time.monotonic()
        is_busy = self._task is not None and not self._task.done()
        if not self._podman or is_busy or now - self._asked.get(fetch, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return
        while len(self._asked) >= MOST_KNOWN:
            del self._asked[next(iter(self._asked))]
        self._asked[fetch] = now
        disk = shutil.disk_usage(self._registries.anchor)
        if disk.free < 2 * disk.total // SPARE:
            _log.info("%s is not fetched ahead: the disk is nearly full", fetch.image)
            return
        self._task = asyncio.get_running_loop().create_task(self._fetch(fetch))

    async def _fetch(self, fetch: Fetch) -> None:
        _log.info("fetching %s ahead", fetch.image)
        process = await asyncio.create_subprocess_exec(
            *fetching(self._podman, fetch.image, fetch.tenant, self._registries),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                _, said = await process.communicate()
        except TimeoutError:
            _log.warning("%s was not fetched ahead within %.0f s", fetch.image, LONGEST_SECONDS)
            return
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
        if process.returncode:
            _log.warning("%s was not fetched ahead: %s", fetch.image, said.decode("utf-8", "replace").strip()[-500:])
