"""Incidents over the API: who sees which, and what the outputs of failed attempts add."""

import asyncio
from pathlib import Path

import pytest

from poise.control.anomalies import Anomalies
from poise.drivers.outputs import endings
from poise.kernel.incidents import MOST_NAMED
from poise.kernel.messages import IncidentDone, Saw
from poise.kernel.visible import Sight
from poise.model.incidents import ElementKind, IncidentReport, Step, Suspect
from poise.model.tenants import HOME, Bearer, Role
from poise.model.usage import MINUTE, SIGNALS, Window
from poise.testing import World, node
from unit.control.desk import OWNER, Desk


def desk_of(world: World) -> Desk:
    desk = Desk(world)
    desk.token("ann", "ann", Role.VIEWER)
    desk.token("bob", "bob", Role.VIEWER)
    return desk


def test_a_lost_node_is_told_to_all_without_the_names_of_others_work() -> None:
    world = World().nodes(4).job("theirs", tenant="bob").round()
    lost = world.state("theirs").units[0].tasks[0].node
    world.start("theirs").lose(lost).after("40s")
    desk = desk_of(world)
    [all_of_it] = desk.call("GET", "/v1/incidents").value
    [to_ann] = desk.call("GET", "/v1/incidents", who="ann").value
    [to_bob] = desk.call("GET", "/v1/incidents", who="bob").value
    theirs = world.state("theirs").id
    assert all_of_it["cause"] == {"kind": "node", "name": lost, "score": 1.0}
    assert (all_of_it["jobs"], to_bob["jobs"], to_ann["jobs"]) == ([theirs], [theirs], ["work of another tenant"])
    assert theirs not in str(to_ann)
    one = desk.call("GET", f"/v1/incidents/{all_of_it['id']}", who="ann")
    assert (one.status, one.value) == (200, to_ann)


def test_an_incident_of_the_fleet_tells_others_neither_what_an_attempt_said_nor_whose_work_was_suspected() -> None:
    world = World().nodes(4)
    for name, tenant in (("a", "ann"), *((f"b{number}", "bob") for number in range(6))):
        kind = {"class": f"plan-{name}"}
        world.job(name, tenant=tenant, node="n1", retry={"limit": 0}, **kind).round().start(name)
        world.finish(name, outcome="failed", code=1, note=f"no such file: /home/{tenant}/plan.py")
    desk = desk_of(world.lose("n1").after("30s"))
    [told], [to_ann] = (desk.call("GET", "/v1/incidents", who=who).value for who in (OWNER, "ann"))
    assert told["cause"]["name"] == to_ann["cause"]["name"] == "n1"
    assert "/home/bob/plan.py" in str(told)
    assert "bob" not in str(to_ann)
    texts = [step["text"] for step in to_ann["timeline"]]
    own = f"{world.state('a').id}.main on n1 ended failed with exit code 1: no such file: /home/ann/plan.py"
    assert own in texts
    assert "work of another tenant on n1 ended failed with exit code 1" in texts


def test_work_that_was_suspected_before_is_not_named_to_others() -> None:
    world = World().nodes(1)
    report = IncidentReport(
        id="i1", title="node n1: node lost (1 node)", opened=1.0, last=2.0, closed=0.0, symptoms={"node-lost": 1},
        cause=Suspect(kind="node", name="n1", score=1.0), tied=(), nodes=("n1",), jobs=(), evidence=(), done=(),
        hint="",
        timeline=(
            Step(at=1.0, revision=1, text="suspected cause: user bob/merger, before: program bob:secret"),
            Step(at=1.5, revision=1, text="suspected cause: node n1, before: user bob/merger"),
            Step(at=2.0, revision=2, text="suspected cause: rack r1, before: node n1"),
            Step(at=3.0, revision=3, text="policy mine failed: KeyError: 'merger'"),
        ),
    )  # fmt: skip
    seen = Sight(world.ledger, Bearer("ann", Role.VIEWER)).incident(report)
    assert seen is not None
    texts = [step.text for step in seen.timeline]
    assert texts == [
        "suspected cause: rack r1, before: node n1",
        "policy mine failed",
    ]
    assert Sight(world.ledger, HOME).incident(report) == report


def test_an_incident_of_work_is_told_to_its_tenant_alone() -> None:
    world = World().nodes(4)
    for number in range(6):
        name = f"b{number}"
        world.job(name, tenant="bob", retry={"limit": 0}, **{"class": "train"}).round().start(name)
        world.finish(name, outcome="failed", code=1)
    desk = desk_of(world.after("30s"))
    [one] = desk.call("GET", "/v1/incidents").value
    assert one["cause"]["name"] == "bob:train"
    assert [of["id"] for of in desk.call("GET", "/v1/incidents", who="bob").value] == [one["id"]]
    assert desk.call("GET", "/v1/incidents", who="ann").value == []
    assert desk.call("GET", f"/v1/incidents/{one['id']}", who="ann").code == "E120"


def test_an_incident_of_many_jobs_is_told_to_their_tenant_and_not_where_the_operator_is_told() -> None:
    world = World().nodes(4)
    for number in range(MOST_NAMED + 10):
        name = f"b{number}"
        world.job(name, tenant="bob", retry={"limit": 0}, **{"class": "train"}).round().start(name)
        world.finish(name, outcome="failed", code=1)
    desk = desk_of(world.after("30s"))
    [one] = desk.call("GET", "/v1/incidents").value
    world.say(IncidentDone(1, one["id"], "opened", "webhook:https://hooks.example/secret", "gone"))
    [told] = desk.call("GET", "/v1/incidents").value
    [to_bob] = desk.call("GET", "/v1/incidents", who="bob").value
    assert told["more_jobs"] == 10 and "secret" in str(told["undelivered"])
    assert to_bob == told | {"undelivered": {}}
    assert desk.call("GET", f"/v1/incidents/{one['id']}", who="bob").value == to_bob
    assert desk.call("GET", "/v1/incidents", who="ann").value == []


@pytest.mark.parametrize(
    ("kind", "name", "sees"),
    [
        ("program", "ann:train", True),
        ("program", "train", False),
        ("program", "bob:ann:train", False),
        ("user", "ann/zoe", True),
        ("user", "ann", True),
        ("user", "anna/zoe", False),
        ("job", "j1", True),
        ("job", "j2", False),
    ],
)
def test_work_is_known_by_its_tenant(kind: ElementKind, name: str, sees: bool) -> None:
    world = World().job("a", tenant="ann").job("b", tenant="bob")
    report = IncidentReport(
        id="i1", title="", opened=1.0, last=2.0, closed=0.0, symptoms={"attempt-failed": 2}, nodes=(), evidence=(),
        cause=Suspect(kind=kind, name=name, score=1.0), tied=(Suspect(kind="user", name="bob", score=0.9),),
        jobs=("j1", "j2"), done=("j2.main was asked to move",), hint="", outputs=("2 of 2 outputs end with: x",),
        timeline=(Step(at=1.0, revision=1, text="j2.main on n1 ended failed with exit code 1: no plan"),),
    )  # fmt: skip
    seen = Sight(world.ledger, Bearer("ann", Role.VIEWER)).incident(report)
    assert (seen is not None) == sees
    if seen is not None:
        assert (seen.jobs, seen.tied, seen.outputs) == (("j1", "work of another tenant"), (), ())
        assert seen.done == ("work of another tenant was asked to move",)
        assert [step.text for step in seen.timeline] == ["work of another tenant on n1 ended failed with exit code 1"]


def test_outputs_say_how_most_of_them_end_and_what_device_codes_mean(tmp_path: Path) -> None:
    for number in range(3):
        folder = tmp_path / f"j{number}"
        folder.mkdir()
        (folder / "main[0].1.err").write_text("of an earlier attempt\n")
        (folder / "main[0].2.err").write_text(
            f"NVRM: Xid (PCI:0000:3b:00): 79, pid={number}\nrank {number}: lost its device after {number} s\n\n"
        )
    (tmp_path / "j9").mkdir()
    (tmp_path / "j9" / "main.1.out").write_text("something else\n")
    told = endings(tmp_path, ["j0.main[0]", "j1.main[0]", "j2.main[0]", "j9.main", "j10.main"])
    assert told == (
        "3 of 4 outputs end with: rank <*> lost its device after <*> s",
        "XID 79: GPU has fallen off the bus; switch the machine off and on; replace the device if it happens again",
    )
    assert endings(tmp_path, ["j10.main"]) == ()


def test_the_end_of_an_output_commands_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "j1").mkdir()
    (tmp_path / "j1" / "main.1.err").write_text("\x1b]52;c;cm0gLXJm\x07 bad\x9bend\n")
    [told] = endings(tmp_path, ["j1.main"])
    assert told.isprintable() and told.startswith("1 of 1 outputs end with: ")


@pytest.mark.parametrize("user", ["ann\0", "\x1b[2Jann", "ann\nbob", "\x9bm"])
def test_a_user_whose_name_would_command_a_terminal_or_end_a_variable_is_refused(user: str) -> None:
    desk = desk_of(World().nodes(1))
    assert desk.call("POST", "/v1/plan", {"spec": {"run": "true"}, "user": "Zoë"}).status == 200
    assert desk.call("POST", "/v1/plan", {"spec": {"run": "true"}, "user": user}).status == 422


@pytest.fixture
def gang() -> Desk:
    world = World()
    for number in range(8):
        world.join(node(f"n{number}", cpu=2))
    return Desk(world.job("g", workers=8, cpu=2).round().start(*[f"g.main[{number}]" for number in range(8)]))


class Comparing:
    """Minutes of the nodes of a gang, one after the other."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.anomalies = Anomalies(desk.plane)
        self.minute = 0

    async def go(self, minutes: int, sick: str = "", **usual: int) -> None:
        """What is `usual` is so on all nodes, but for half of it on the `sick` one."""
        for _ in range(minutes):
            self.minute += MINUTE
            for name in self.desk.world.ledger.nodes:
                means = [usual.get(signal, 0) // (2 if name == sick else 1) for signal in SIGNALS]
                self.anomalies.take(name, [Window(self.minute, tuple(means), tuple(means))])
            await self.anomalies.compare(self.minute)


def test_a_member_that_differs_is_recorded_once_and_so_is_its_recovery(gang: Desk) -> None:
    asyncio.run(differs(gang))


async def differs(gang: Desk) -> None:
    comparing = Comparing(gang)
    posted: list[Saw] = []
    gang.plane.post = posted.append  # type: ignore[method-assign,assignment]
    task = gang.world.state("g").units[0].tasks[3]
    await comparing.go(10, device=900, device_power=300_000)
    assert posted == []
    await comparing.go(6, sick=task.node, device=900, device_power=300_000)
    [saw] = posted
    assert (saw.noticed.kind, saw.noticed.subject, saw.noticed.over) == ("member-differs", "j1.main[3]", False)
    assert f"on {task.node} differs from its gang" in saw.noticed.text
    await comparing.go(3, device=900, device_power=300_000)
    assert [saw.noticed.over for saw in posted] == [False, True]
