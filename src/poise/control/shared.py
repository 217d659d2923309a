"""A log that several control planes share: one leads, the others stand by. This module follows the log and takes over
the lead.

A standby polls the store every quarter of a second for new events and for the lease. Notifications (PostgreSQL's
LISTEN, etcd's watch) would need a connection of their own and save only that quarter.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from poise import __version__
from poise.config import Address, Home
from poise.control.plane import Plane, leave
from poise.drivers.devices import identity
from poise.drivers.led import Lease, LedStore, lease_at, store_at
from poise.drivers.security import digest
from poise.drivers.system import boottime
from poise.drivers.vault import Vault
from poise.engine.host import load_ledger
from poise.errors import Conflict, InputError, PoiseError
from poise.kernel.ledger import Ledger
from poise.model.events import Event, JobSubmitted, ScheduleAdded, decode_event, encode_event
from poise.model.times import Times

LOOK_SECONDS = 0.25
LIFE_SECONDS = 1.0
PAGE = 5_000
"""Events applied in one batch; reads wait meanwhile."""

PASSING = frozenset({"E202", "E211", "E213"})
"""Store errors that are retried: full, away, or access denied. A standby that exited instead would stay down, and no
control plane would lead once the store recovers.
"""

_log = logging.getLogger("poise.control")


def _parted(address: str) -> tuple[str, str]:
    """Split an address into where to connect and the fingerprint of its certificate authority; a socket has none."""
    with contextlib.suppress(InputError):
        told = Address.parse(address)
        return str(told), told.authority
    return address, ""


async def open_shared(url: str, home: Home, token: str, address: str) -> "Shared":
    """Open the log once the store answers. Until then its error is in a file that the command line shows."""
    call_soon = asyncio.get_running_loop().call_soon_threadsafe
    lease = lease_at(
        url,
        holder=f"{os.uname().nodename}:{home.root} ({identity(home.root)[:8]})",
        address=address,
        token=digest(token),
        lasts=Times().leadership,
        on_lost=leave,
    )

    def opened() -> Shared:
        store = store_at(
            url, encode_event, decode_event, call_soon=call_soon, warn=_log.warning, written_by=__version__
        )
        try:
            shared = Shared(store, load_ledger(store), lease, digest(token), Vault.of(home), _parted(address)[1])
            ledger = shared.ledger
            shared.compare_keys(ledger.sealed_texts())
            shared.leader()
            return shared
        except PoiseError:
            store.close()
            raise

    while True:
        try:
            shared = await asyncio.to_thread(opened)
            home.failure.unlink(missing_ok=True)
            return shared
        except PoiseError as error:
            if error.record.code not in PASSING:
                raise
            if not home.failure.exists():
                _log.warning("%s", error)
                home.failure.write_bytes(msgspec.json.encode(error.record))
            await asyncio.sleep(LOOK_SECONDS)


class Shared(NamedTuple):
    """`ledger` is the state of the log when it was opened. `token` is the digest of the home's token; `authority` is
    the fingerprint of the home's certificate authority if it listens to other machines. Both must match the leader's,
    or clients could not connect after a change of leader. `vault` decrypts what the others encrypt.
    """

    store: LedStore[Event]
    ledger: Ledger
    lease: Lease
    token: str
    vault: Vault
    authority: str = ""

    def leader(self) -> str:
        """Return the leader's address, or an empty text. Raises `Conflict` if its token or authority differs."""
        led = self.lease.look()
        if not led.held:
            return ""
        address, authority = _parted(led.address)
        if led.token != self.token:
            raise Conflict(
                "the control plane that leads has another token",
                field="token",
                have=address,
                hint="copy the file `token` of its home into this one, readable by its owner only",
            )
        if authority and self.authority and authority != self.authority:
            raise Conflict(
                "certificate fingerprint mismatch at the control plane that leads",
                field="authority",
                need=f"{authority[:12]}…, of {address}",
                have=f"{self.authority[:12]}…",
                hint="copy the folder `authority` of its home in place of this one's, readable by its owner only",
            )
        return address

    def compare_keys(self, texts: Iterable[str]) -> None:
        """Warn of secrets that cannot be decrypted here: if this control plane led, their jobs would be on hold."""
        try:
            missing = self.vault.missing(texts)
        except PoiseError as error:
            _log.warning("%s: %s", error, error.record.field)
            return
        for key in missing:
            _log.warning("secrets of jobs are sealed with key %s: copy its line into %s", key, self.vault.path)

    async def lead(self, plane: Plane) -> None:
        """Stand by, then lead until the process ends. Raises errors that a person must fix."""
        await self._until_it_leads(plane)
        while True:
            self.lease.lives()
            await asyncio.sleep(LIFE_SECONDS)

    async def _until_it_leads(self, plane: Plane) -> None:
        away = False
        while True:
            try:
                while await self._catch_up(plane):
                    pass
                if term := await asyncio.to_thread(self.lease.take):
                    await self._lead(plane, term)
                    return
                plane.behind = await asyncio.to_thread(self.leader)
                away, plane.away = False, ""
            except PoiseError as error:
                if error.record.code not in PASSING:
                    raise
                if not away:
                    _log.warning("%s", error)
                away = True
                plane.behind, plane.away = "", str(error)
            await asyncio.sleep(LOOK_SECONDS)

    async def _catch_up(self, plane: Plane) -> bool:
        """Apply new events. Return whether the page was full; only then read on, or a steady writer keeps us busy."""
        known, looked = plane.ledger.revision, boottime()
        events = await asyncio.to_thread(lambda: list(self.store.read(known, PAGE)))
        if events and events[0][0] != known + 1:  # the log was pruned meanwhile
            plane.start_from(await asyncio.to_thread(load_ledger, self.store))
            return True
        plane.take_in(events, looked)
        submitted = [event.job for _, event in events if isinstance(event, JobSubmitted)]
        submitted += [event.schedule.job for _, event in events if isinstance(event, ScheduleAdded)]
        self.compare_keys(text for job in submitted for text in job.sealed_texts())
        return len(events) == PAGE

    async def _lead(self, plane: Plane, term: int) -> None:
        """Apply the rest of the log: no other control plane can append to it now. Then start to lead."""
        while await self._catch_up(plane):
            pass
        last, known = await asyncio.to_thread(self.store.lead, term), plane.ledger.revision
        if last != known:
            raise Conflict(
                "the log ends before the revision that was read", code="E204", need=f"revision {known}", have=f"{last}"
            )
        plane.lead(term, self.lease.holds)
        await plane.settled()
        _log.info("leads: revision %d, term %d", plane.ledger.revision, term)
