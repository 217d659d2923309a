"""Copies of the devices that drivers publish in a cluster, and of their claims."""

import logging
from collections.abc import Callable
from typing import Any

from poise.drivers.kubernetes.api import Api, Away, Refused
from poise.drivers.kubernetes.credentials import Access
from poise.drivers.kubernetes.watching import Watched
from poise_kubernetes.claims import NO_CHANGES, VERSION, ClaimObject, ClassObject, DeviceChanges, SliceObject

_log = logging.getLogger("poise.kubernetes")


class Published:
    """Slices, classes and claims. They stay empty if the cluster does not serve them (before 1.34), or if the rights to
    read them are missing. The threads of watches call `changed` after each change.
    """

    def __init__(self, access: Access, changed: Callable[[], None] = lambda: None) -> None:
        self._slices = Watched(Api(access), f"{VERSION}/resourceslices", SliceObject, changed=changed)
        self._classes = Watched(Api(access), f"{VERSION}/deviceclasses", ClassObject, changed=changed)
        self._claims = Watched(Api(access), f"{VERSION}/resourceclaims", ClaimObject, changed=changed)
        self._served = False

    def list(self) -> None:
        """Read them for the first time, and determine whether they are served."""
        try:
            for one in self._all():
                one.list()
            self._served = True
        except (Away, Refused) as error:
            _log.info("devices of drivers are not used: %s", error)

    def start(self) -> None:
        for one in self._all() if self._served else ():
            one.start()

    def stop(self) -> None:
        for one in self._all():
            one.stop()

    def news(self) -> DeviceChanges:
        """Return the changes since the last call."""
        if not self._served:
            return NO_CHANGES
        return DeviceChanges(self._slices.news(), self._classes.news(), self._claims.news())

    def _all(self) -> tuple[Watched[Any], ...]:
        return self._slices, self._classes, self._claims
