"""The folders of models that a gateway was started with, as the model repository of KServe's protocol."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from poise.errors import Conflict, NotFound, PoiseError
from poise.model.document import near, some
from poise_serve.live import Live
from poise_serve.model.changes import Document
from poise_serve.running import Running

Read = Callable[[], Mapping[str, Sequence[Document] | PoiseError]]
"""Reads the models in the folders: the documents of each, or its error."""


class Folders:
    """See `Repository` of `poise_serve.kserve`."""

    def __init__(self, read: Read, live: Live, running: Running) -> None:
        self._read = read
        self._live, self._running = live, running

    async def unloaded(self) -> dict[str, str]:
        """Return the models that are not served, each with the reason."""
        return {
            name: found.record.message if isinstance(found, PoiseError) else self._running.changes.get(name, "")
            for name, found in (await self._found()).items()
            if name not in self._running.models
        }

    async def load(self, name: str, by: str) -> None:
        """Serve what the folder of a model holds now, and wait until it is ready. Raises `PoiseError`."""
        models = await self._found()
        found = models.get(name)
        if found is None:
            have = some(list(models), 12) or "no folders of models"
            hint = near(name, list(models)) or "`poise serve FOLDER` serves its models"
            raise NotFound("there is no folder of this model", field="name", have=have, hint=hint)
        if isinstance(found, PoiseError):
            raise found
        applied = await self._live.apply(found, by, models=(name,))
        states = [await self._running.settled(one) for one in applied.pending]
        if failed := [state for state in states if state.startswith("failed")]:
            raise Conflict("a version cannot start; the old one stays", have="; ".join(failed))

    async def unload(self, name: str, by: str) -> None:
        """Stop serving a model. Raises `PoiseError`."""
        if name not in self._running.models:
            raise NotFound("there is no such model", field="name", have=some(list(self._running.models), 12))
        versions = list(self._running.models[name].values())
        await self._live.remove(name, by)
        for version in versions:
            await self._running.settled(version)

    async def _found(self) -> Mapping[str, Sequence[Document] | PoiseError]:
        return await asyncio.to_thread(self._read)


__all__ = ["Folders"]
