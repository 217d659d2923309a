"""Copies of objects that not every cluster serves, or lets a scheduler read: devices of drivers, and volumes."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from poise.drivers.kubernetes.api import Api, Refused
from poise.drivers.kubernetes.credentials import Access
from poise.drivers.kubernetes.objects import Known
from poise.drivers.kubernetes.watching import Watched
from poise_kubernetes.claims import VERSION, ClaimObject, ClassObject, DeviceChanges, SliceObject
from poise_kubernetes.volumes import CLAIMS, CLASSES, VOLUMES, StorageClass, Volume, VolumeChanges, VolumeClaim

DEVICES: Mapping[str, type[Known]] = {
    f"{VERSION}/resourceslices": SliceObject,
    f"{VERSION}/deviceclasses": ClassObject,
    f"{VERSION}/resourceclaims": ClaimObject,
}
MOUNTS: Mapping[str, type[Known]] = {CLAIMS: VolumeClaim, VOLUMES: Volume, CLASSES: StorageClass}

Changed = TypeVar("Changed", DeviceChanges, VolumeChanges)

_log = logging.getLogger("poise.kubernetes")


class Published(Generic[Changed]):
    """Objects of these `kinds`, by path. They stay unknown if the cluster does not serve them (devices before 1.34), or
    if the rights to read them are missing. The threads of watches call `changed` after each change.
    """

    def __init__(
        self,
        access: Access,
        kinds: Mapping[str, type[Known]],
        changes: type[Changed],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._changes: type[Changed] = changes
        self._what = ", ".join(kinds)
        self._all: tuple[Watched[Any], ...] = tuple(
            Watched(Api(access), path, kind, changed=changed) for path, kind in kinds.items()
        )
        self._served = False

    def list(self) -> None:
        """Read them for the first time, and determine whether they are served. Raises `Away`, and `Refused` if the
        server is too busy.
        """
        try:
            for one in self._all:
                one.list()
            self._served = True
        except Refused as refused:
            if refused.status not in (403, 404):
                raise
            _log.info("%s: not used: %s", self._what, refused)

    def start(self) -> None:
        for one in self._all if self._served else ():
            one.start()

    def stop(self) -> None:
        for one in self._all:
            one.stop()

    def news(self) -> Changed | None:
        """Return the changes since the last call; None if the objects are unknown."""
        return self._changes(*(one.news() for one in self._all)) if self._served else None
