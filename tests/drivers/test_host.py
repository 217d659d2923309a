"""The host of a control plane beside a real log: what happens when it lets go of it."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from poise.control.decider import InlineDecider
from poise.drivers.plugins import build, choose
from poise.drivers.sqlite import SqliteStore
from poise.drivers.system import SystemClock
from poise.engine.host import Host, load_ledger
from poise.kernel.controller import AddToken, Controller, Settings
from poise.model.events import Event, decode_event, encode_event
from poise.model.tenants import Role

POLICY = build(choose("poise"))


def test_what_is_heard_after_the_log_is_let_go_of_is_left_to_the_next_host(tmp_path: Path) -> None:
    """A control plane that leaves is ended by what its nodes say meanwhile, and started again, unless it stops."""
    met: list[object] = []

    @contextlib.contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            met.append(error)

    async def live_and_leave() -> int:
        loop = asyncio.get_running_loop()
        store: SqliteStore[Event] = SqliteStore(
            tmp_path / "log.db", encode_event, decode_event, call_soon=loop.call_soon_threadsafe
        )
        controller, decider = Controller(load_ledger(store), Settings(policy="poise")), InlineDecider(POLICY)
        host = Host(controller, store, SystemClock(), decider, loop, tell=met.append, guard=guard)
        host.begin(boot="boot", boottime=0)
        answered = asyncio.Event()
        host.ask(token("a"), lambda _: answered.set())
        await answered.wait()
        host.ask(token("b"), lambda _: None)
        host.end()
        host.ask(token("c"), lambda _: None)
        await asyncio.sleep(0.05)
        return store.durable()

    durable = asyncio.run(live_and_leave())
    assert not met
    log = SqliteStore.open_read_only(tmp_path / "log.db", decode_event)
    assert [revision for revision, _ in log.read()][-1] == durable
    log.close()


def token(tenant: str) -> Callable[[int], AddToken]:
    """What asks for a token of this tenant, which is an event in the log."""
    return lambda request: AddToken(request=request, tenant=tenant, role=Role.SUBMITTER, hash=tenant * 64)
