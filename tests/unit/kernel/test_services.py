"""Services that gateways report: what is recorded of them, what is forgotten, and which rules follow."""

from typing import Any

import msgspec

from poise.kernel.backtest import backtest
from poise.kernel.ledger import Ledger
from poise.kernel.messages import HearServices, SetRules
from poise.model.events import Event, Noticed, RuleFired, RuleOver, RuleSteered, ServicesMeasured, encode_event
from poise.model.reports.services import ServiceOrder
from poise.model.rules import compile_rules
from poise.model.served import GONE_AFTER, LEAST, MAX_AMOUNT, MAX_GATEWAYS, MAX_SERVICES, Served
from poise.testing import World
from poise.units import DAY, MILLISECOND, MINUTE, SECOND

GATEWAY = "0a1b2c3d"


def hear(world: World, tenant: str = "", gateway: str = GATEWAY, **services: Served) -> World:
    names = {f"{tenant}:{name}" if tenant else name: state for name, state in services.items()}
    return world.ask(HearServices(world.request(), tenant or "default", gateway, names))


def left_out(world: World) -> Any:
    return world.replies[-1].value


def recorded(world: World) -> list[ServicesMeasured]:
    return [event for event in world.log if isinstance(event, ServicesMeasured)]


def state(p99: int = 200, **fields: Any) -> Served:
    """The state of a service with a P99 in milliseconds, and an objective of 300 ms."""
    usual: dict[str, Any] = {"rate": 50_000, "objective": 300 * MILLISECOND, "ready": 2, "wanted": 2}
    return Served(p99=p99 * MILLISECOND, **usual | fields)


def told(world: World, seconds: int, **services: Served) -> World:
    """Gateways report every two seconds."""
    for _ in range(seconds // 2):
        world.ask(HearServices(world.request(), "default", GATEWAY, services)).after("2s")
    return world


def test_a_service_is_recorded_after_a_change_or_a_minute() -> None:
    world = told(World(), 4, chat=state())
    assert not recorded(world), "another gateway may have it too"
    told(world, 60, chat=state())
    assert len(recorded(world)) == 1
    told(world, 2, chat=state())
    assert len(recorded(world)) == 2, "a minute has passed"
    told(world, 8, chat=state(400))
    assert len(recorded(world)) == 2, "ten seconds have not"
    told(world, 2, chat=state(400))
    assert recorded(world)[-1].services == {"chat": state(400).values}
    told(world, 30, chat=state(430))
    assert len(recorded(world)) == 3, "7 % are not noticeable"
    assert world.ledger.services["chat"].state == state(400)


def test_the_log_grows_by_a_known_amount() -> None:
    """A steady service costs less than 150 kB a day. One that changes all the time costs less than 0.9 MB, or 2.1 MB
    with the longest names and the largest figures.
    """
    steady, restless = World(check=False), World(check=False)
    for minute in range(10):
        told(steady, 60, digits=state(250))
        for second in range(0, 60, 2):
            told(restless, 2, digits=state(250 + 200 * (second % 4), waiting=minute + second))
    days = [len(b"".join(map(encode_event, recorded(of)))) * DAY / (10 * MINUTE) for of in (steady, restless)]
    assert days[0] < 150_000
    assert days[1] < 900_000
    most = Served(**dict.fromkeys(Served.__struct_fields__, MAX_AMOUNT) | {"refused": 1000})
    largest = ServicesMeasured(at=2**62, services={f"{'t' * 63}:{'s' * 63}": most.values})
    assert len(encode_event(largest)) * DAY / LEAST < 2_100_000


def test_gateways_with_the_same_service_count_together() -> None:
    world = World()
    for _ in range(10):
        hear(world, gateway="a", chat=state(200, refused=100, waiting=3))
        hear(world, gateway="b", chat=state(900, rate=150_000, objective=0, waiting=1)).after("2s")
    assert [event.services["chat"] for event in recorded(world)] == [
        state(900, rate=200_000, refused=25, waiting=4, ready=4, wanted=4).values,
    ]
    for _ in range(10):
        hear(world, gateway="a", chat=state(200, refused=100, waiting=3)).after("2s")
    assert recorded(world)[-1].services["chat"] == state(200, refused=100, waiting=3).values, "the other one has ended"


def test_after_a_restart_a_service_waits_for_all_its_gateways() -> None:
    world = World()
    for _ in range(20):
        hear(world, gateway="a", chat=state())
        hear(world, gateway="b", chat=state()).after("2s")
    world.restart(from_checkpoint=True).after("2m")
    for _ in range(20):
        hear(world, gateway="a", chat=state())
        hear(world.after("1s"), gateway="b", chat=state()).after("1s")
    assert {event.services["chat"] for event in recorded(world)[1:]} == {state(rate=100_000, ready=4, wanted=4).values}


def test_after_a_stall_a_service_waits_for_all_its_gateways() -> None:
    """The control plane hears nothing for 13 s, and every gateway appears silent."""
    world = World()
    for stall in ("13s", "0s"):
        for _ in range(30):
            hear(world, gateway="a", chat=state())
            hear(world.after("1s"), gateway="b", chat=state()).after("1s")
        world.after(stall)
    assert {event.services["chat"] for event in recorded(world)} == {state(rate=100_000, ready=4, wanted=4).values}


def test_a_service_is_not_gone_because_the_control_plane_was_away() -> None:
    world = told(World(), 20, chat=state())
    world.now += 29 * MINUTE
    told(world.restart(from_checkpoint=True).after("90s"), 20, chat=state())
    assert [event.gone for event in recorded(world) if event.gone] == []


def test_a_service_that_nobody_reports_is_forgotten_and_a_replay_agrees() -> None:
    world = told(World(), 20, chat=state(), image=state())
    told(world, GONE_AFTER // SECOND + 60, image=state())
    assert list(world.ledger.services) == ["image"]
    assert [event.gone for event in recorded(world) if event.gone] == [("chat",)]
    again = Ledger()
    for event in world.log:
        again.apply(event)
    assert again.encode() == world.ledger.encode()
    assert Ledger.decode(again.encode()).encode() == again.encode()


def test_a_tenant_has_only_so_many_services() -> None:
    world = World()
    for first in range(0, MAX_SERVICES, 200):
        services = {f"s{number}": state() for number in range(first, first + 200)}
        world.ask(HearServices(world.request(), "default", GATEWAY, services))
    told = left_out(hear(world, more=state(), s1=state()))
    assert told == {"more": f"tenant default has {MAX_SERVICES} services already"}
    assert left_out(hear(world, tenant="ann", more=state())) == {}
    assert not world.ledger.services, "those that wait for all their gateways count too"


def test_a_service_has_only_so_many_gateways_and_its_amounts_stay_writable() -> None:
    world = World()
    largest = Served(rate=MAX_AMOUNT, waiting=MAX_AMOUNT, ready=MAX_AMOUNT, wanted=MAX_AMOUNT)
    for number in range(MAX_GATEWAYS):
        hear(world, gateway=f"g{number}", chat=largest)
    assert left_out(hear(world, gateway="more", chat=largest)) == {"chat": f"it has {MAX_GATEWAYS} gateways already"}
    for _ in range(3):
        for number in range(MAX_GATEWAYS):
            hear(world, gateway=f"g{number}", chat=msgspec.structs.replace(largest, p99=1))
        world.after("5s")
    assert recorded(world)[-1].services["chat"] == msgspec.structs.replace(largest, p99=1).values
    for _ in range(6):
        hear(world.after("2s"), gateway="g0", chat=largest)
    assert left_out(hear(world, gateway="more", chat=largest)) == {}, "the others are silent"


# --- rules -----------------------------------------------------------------------------------------------------------

SLOW: dict[str, Any] = {
    "name": "slow",
    "mode": "on",
    "trigger": "service_p99_of_objective > 120%",
    "clear": "service_p99_of_objective < 90%",
    "sustained_for": "1m",
    "actions": [{"scale_up_replicas": {"by": 2}}, {"notify": True}],
}


def rules(*given: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"kind": "rules", "rules": list(given)} | fields


def load(world: World, document: dict[str, Any]) -> World:
    return world.ask(SetRules(world.request(), document))


def changes(events: list[Event]) -> list[tuple[str, str, int, bool]]:
    return [
        (event.rule, event.subject, event.due, isinstance(event, RuleOver))
        for event in events
        if isinstance(event, RuleFired | RuleOver)
    ]


def test_a_firing_ends_with_its_service_and_a_replay_agrees() -> None:
    world = told(load(World(), rules(SLOW)), 120, chat=state(400), image=state(200))
    assert [order.service for order in world.controller.ruling.orders()] == ["chat"]
    told(world, GONE_AFTER // SECOND + 120, image=state(200))
    assert world.controller.ruling.orders() == []
    [over] = [event for event in world.log if isinstance(event, RuleOver)]
    assert (over.subject, over.have) == ("chat", "the service is gone")
    assert [event.text for event in world.log if isinstance(event, Noticed) and event.over] == [
        "service chat is in rule slow: over: the service is gone"
    ]
    tested = backtest(world.log, compile_rules(rules(SLOW)), Ledger())
    assert [(change.over, change.have) for change in tested.changes][1:] == [(True, "the service is gone")]
    world.restart(from_checkpoint=True).after("5m")
    assert len([event for event in world.log if isinstance(event, RuleOver)]) == 1


def test_a_slow_service_gets_replicas_until_it_is_fast() -> None:
    world = told(load(World(), rules(SLOW)), 120, chat=state(200), image=state(200))
    told(world, 120, chat=state(400), image=state(200))
    assert world.controller.ruling.orders() == [ServiceOrder(service="chat", rule="slow", by=2)]
    [notice] = [event for event in world.log if isinstance(event, Noticed)]
    assert (notice.subject, notice.service) == ("chat", True)
    assert notice.text == "service chat is in rule slow: service_p99_of_objective 133%"
    told(world, 120, chat=state(200), image=state(200))
    assert world.controller.ruling.orders() == []
    found = backtest(world.log, compile_rules(rules(SLOW)), Ledger())
    assert [(of.rule, of.subject, of.over) for of in found.changes] == [
        (rule, subject, over) for rule, subject, _, over in changes(world.log)
    ]
    assert (found.missing, found.rules[0].firings) == ((), 1)


def test_a_rule_is_about_the_services_in_its_scope() -> None:
    scoped = SLOW | {"scope": ["ann:chat"]}
    world = load(World(), rules(scoped))
    for _ in range(120):
        hear(world, chat=state(400))
        hear(world, tenant="ann", chat=state(400)).after("2s")
    assert [subject for _, subject, _, _ in changes(world.log)] == ["ann:chat"]
    [told_of] = world.controller.ruling.report().rules
    assert (told_of.about, told_of.scope) == ("service", "ann:chat")


def test_a_service_that_reports_nothing_is_missing_data() -> None:
    world = told(load(World(), rules(SLOW)), 240, chat=state(400))
    assert len(changes(world.log)) == 1
    world.after("5m")
    assert len(changes(world.log)) == 1, "the rule holds"
    told(world, 120, chat=state(0))
    assert len(changes(world.log)) == 1, "without answers there is no P99"
    told(world, 120, chat=state(200))
    assert [over for *_, over in changes(world.log)] == [False, True]


def test_a_test_says_that_a_log_has_no_services() -> None:
    told_of = backtest(World().after("5m").log, compile_rules(rules(SLOW)), Ledger())
    assert told_of.missing == ("service_p99_of_objective",)


def test_a_restart_keeps_what_gateways_have_reported() -> None:
    world = told(load(World(), rules(SLOW)), 240, chat=state(400)).restart(from_checkpoint=True)
    assert world.ledger.services["chat"].state == state(400)
    told(world, 240, chat=state(400))
    assert len(changes(world.log)) == 1
    assert len(world.controller.ruling.orders()) == 1


# --- control loops ---------------------------------------------------------------------------------------------------

LOOP: dict[str, Any] = {
    "knob": "replicas",
    "of": "chat",
    "target": {"service_p99_of_objective": "80%"},
    "effect": "lowers",
    "least": 0,
    "most": 8,
}
HOLD: dict[str, Any] = {
    "name": "hold",
    "mode": "on",
    "trigger": "nodes_up >= 0",
    "clear": "nodes_up < 0",
    "actions": [{"control": LOOP}],
}


def test_a_loop_holds_the_latency_of_its_service() -> None:
    """A service whose P99 is 480 ms with the replicas of its scaler, and falls with each extra one."""
    world = load(World(), rules(HOLD, budget=1000))
    for _ in range(40):
        extra = sum(order.by for order in world.controller.ruling.orders())
        told(world, 60, chat=state(480 * 4 // (4 + extra)), image=state(900))
    assert [(order.service, order.by) for order in world.controller.ruling.orders()] == [("chat", 4)]
    steps = [event.value for event in world.log if isinstance(event, RuleSteered)]
    assert steps[-1] == 4
    assert world.controller.ruling.report().rules[0].knob == "replicas of chat: +4"
    world.after("5m")
    assert world.controller.ruling.report().rules[0].why_not == "service_p99_of_objective is unknown"
    assert [order.by for order in world.controller.ruling.orders()] == [4]
