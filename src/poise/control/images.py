"""Pins the images of jobs at submission. The job stores the digest that the tag has then, so all its attempts and all
members of a gang run the same image.

If the digest cannot be determined, the job keeps the name of the image, and the submitter gets the reason.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from poise.drivers.registries import Unpinned, pinned
from poise.model.jobs import Unit
from poise.model.spec import Compiled, with_image

AT_ONCE = 8
"""Maximum number of concurrent requests to registries."""

OF_TENANT = AT_ONCE // 2
"""Maximum number of them for one tenant, who may name a slow registry."""

OTHERS = 4
"""Maximum number of images of one job to pin; the others keep their names."""


class Images:
    """Pins images with the credentials of tenants in a folder; None: of a control plane without a home."""

    def __init__(self, registries: Path | None) -> None:
        self._registries = registries
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._threads = ThreadPoolExecutor(AT_ONCE, "registry")  # other work needs the other threads

    async def pinned(self, compiled: Compiled) -> Compiled:
        """Return the job with pinned images. Raises SpecError for an image that its registry does not have."""
        of_array = () if compiled.array is None else (compiled.array.like, compiled.array.merge)
        units = [*compiled.units, *filter(None, of_array)]
        names = list(dict.fromkeys(unit.image for unit in units if unit.image))
        if not names or self._registries is None:
            return compiled
        logins = self._registries / f"{compiled.tenant}.json"
        own = self._of.setdefault(compiled.tenant, asyncio.Semaphore(OF_TENANT))
        loop = asyncio.get_running_loop()
        made: dict[str, str] = {}
        notes = [compiled.note] if compiled.note else []
        for name in names[:OTHERS]:
            try:
                async with own, self._turns:
                    made[name] = await loop.run_in_executor(self._threads, pinned, name, logins)
            except Unpinned as why:
                notes.append(f"the image {name} is not pinned: {why}")

        def named(unit: Unit) -> Unit:
            return with_image(unit, made[unit.image]) if unit.image in made else unit

        array = compiled.array
        if array is not None:
            merge = None if array.merge is None else named(array.merge)
            array = msgspec.structs.replace(array, like=named(array.like), merge=merge)
        return compiled._replace(units=tuple(map(named, compiled.units)), array=array, note="; ".join(notes))


AS_NAMED = Images(None)
"""Of a control plane without a home."""
