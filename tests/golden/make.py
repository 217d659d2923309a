"""Golden logs: small histories as this version records them, and the state that they make.

    PYTHONPATH=tests python tests/golden/make.py

adds a set in a folder of its own, named by the next number. Sets that are there are never made again: what they hold
was written by an older version, and has to give the same state for ever (docs/decisions/014-replay.md). Add one when
there are new kinds of records, or new fields in them.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from poise import __version__
from poise.drivers.logfile import open_log, write_log
from poise.kernel.ledger import Ledger
from poise.kernel.messages import (
    AddToken,
    AnswerRule,
    CancelJobs,
    Configure,
    FromCallWorker,
    HearServices,
    IncidentDone,
    JudgeShadows,
    Locked,
    NoticeDone,
    ResumeJob,
    Saw,
    SetRules,
    SetShares,
    SignedIn,
    Submit,
)
from poise.model.calls import Call, Calling, Function, Ready, Result, Resume, Returning, Value
from poise.model.events import Began, Event, Noticed, decode_event, encode_event
from poise.model.jobs import Ending
from poise.model.load import Load
from poise.model.messages import Attempt, Beat, DeviceFault, Hello, Idle, Report, Running, Told
from poise.model.progress import Speedups
from poise.model.resources import ALLOCATED, CONTAINERS
from poise.model.secrets import Sealed, sealed
from poise.model.served import Served
from poise.model.sharefile import compile_shares
from poise.model.tenants import HOME, Bearer, Role
from poise.model.training import Saved, Training
from poise.policy.recipe import compile_recipe
from poise.policy.suites import Suite, policy_named
from poise.testing import WALL, World, node
from poise.units import MILLISECOND, SECOND

HERE = Path(__file__).resolve().parent


def noops() -> World:
    """A stream of commands of nothing, that wait behind each other."""
    world = World().nodes(1, cpu=2)
    for number in range(12):
        world.job(f"no-op-{number}", cpu=1)
        if number % 4 == 3:
            world.after("200ms").finish_all(run="3ms")
    return world


def gangs() -> World:
    """A gang yields to another, an elastic one starts, a graph with a deadline and a job that comes after it."""
    world = World("poise", throughputs={"train@gpu": 40.0}).nodes(2, cpu=8, gpus=4)
    world.job("low", workers=4, gpu=2, priority="low", preemptible=True, checkpoint="10s", expect="2h").round()
    world.start("low.main[0]", "low.main[1]", "low.main[2]", "low.main[3]").after("2m")
    world.job("high", workers=4, gpu=2, priority="urgent", expect="1m").after("2s")
    world.start("high.main[0]", "high.main[1]", "high.main[2]", "high.main[3]").after("10s")
    tasks: dict[str, dict[str, Any]] = {
        "a": {"cpu": 1},
        "b": {"cpu": 2, "needs": ["a"]},
        "c": {"cpu": 1, "needs": ["a"]},
    }
    world.graph("graph", tasks=tasks, deadline="2h").job("next", cpu=1, after=["graph"])
    world.job("elastic", workers="1..4", gpu=1, checkpoint="10s", expect="1h")
    return world.finish_all(run="20s")


def lost() -> World:
    """A node is lost with work on it, which goes on elsewhere, and comes back; another is drained; one fails."""
    world = World().nodes(3, cpu=4, memory="8GiB")
    for number in range(6):
        world.job(f"job-{number}", cpu=2, retry={"limit": 3, "backoff": "1s", "when": ["lost", "failed", "oom"]})
    world.round().start(*(f"job-{number}" for number in range(4))).after("1s")
    world.lose("n1").after("2s").drain("n2").after("1s").connect("n1").after("1s")
    world.finish("job-2", outcome="failed", code=3).after("3s").drain("n2", on=False)
    return world.restart().finish_all(run="2s")


def calls() -> World:
    """A job that serves calls: some return, one is tried again, its workers end and are called up anew."""
    retry = {"limit": 3, "backoff": "0.1s", "when": ["lost", "killed", "failed"]}
    world = World().nodes(1, cpu=4).job("f", parts=2, calls=True, retry=retry).caller("f", Resume("j1"))
    wanted = tuple(Call(number, 0, Value("m", b"\x90")) for number in range(1, 9))
    world.caller("f", Calling((Function("f", "m"),), wanted)).round()
    first, second = (attempt for attempt in sorted(world.held["n1"]))
    for attempt in (first, second):
        _say(world.start(attempt.task), attempt, Ready(attempt))
    _say(world, first, Returning((Result(1, "done", Value("m", b"\x01"), 1000),)))
    world.finish(second.task, outcome="killed").after("1s")
    for attempt in sorted(world.held["n1"]):
        if attempt not in world.started:
            _say(world.start(attempt.task), attempt, Ready(attempt))
    world.after("1s")
    return world


def tenants() -> World:
    """Three tenants with and without quotas and tokens, under a policy of one's own; some work is cancelled."""
    document = {"kind": "policy", "name": "ours", "extends": "poise", "order": {"urgency": 0.5, "waiting": 0.5}}
    ours = Suite(compile_recipe(document))
    world = World(ours, recipe=msgspec.to_builtins(ours.recipe), code="12345678").nodes(2, cpu=8)
    world.ask(AddToken(request=world.request(), tenant="ann", role=Role.SUBMITTER, hash="0" * 64, name="laptop"))
    world.quota("ann", cpu=3).quota("bob", cpu=8, memory="4GiB")
    for number in range(4):
        for tenant in ("ann", "bob", "default"):
            world.job(f"job-{number}", cpu=2, tenant=tenant, priority="high" if number % 2 else "low")
        world.after("500ms")
    world.cancel("job-3").quota("ann", none=True).after("1s")
    return world.restart(from_checkpoint=True, history=4).finish_all(run="5s")


def troubles() -> World:
    """A node falls silent for a moment, then for good, with exclusive work on it; a device fails and is opened again;
    commands hang and run out of memory.
    """
    world = World().nodes(3, cpu=4, gpus=2)
    world.job("alone", cpu=1, lease="exclusive").job("trained", gpu=1).job("hangs", cpu=1, hang="5s").round()
    world.start("alone", "trained", "hangs").after("1s")
    at, attempt = world.where("trained")[0], Attempt(f"{world.state('trained').id}.main", 1)
    world.hear(at, Report(serial=99, faults=(DeviceFault(index=0, code="XID 79", text="has fallen off the bus"),)))
    world.end(at, attempt, Ending(outcome="stopped", run=SECOND)).after("1s")
    world.finish("hangs", outcome="hung", run="5s", note="silent for 5 s").after("2s").drain(f"{at}:0", on=False)
    cut_off = world.where("alone")[0]
    world.lose(cut_off).after("15s").connect(cut_off).after("1s")
    world.job("swept", cpu=1, parts=16, memory="1GiB", hang="1m").round()
    for part in range(13):
        world.start(f"swept.main[{part}]").after("1s").finish(f"swept.main[{part}]", run="1s").after("200ms")
    world.start("swept.main[13]").after("30s")
    world.finish("swept.main[13]", outcome="oom", run="30s", peak=2**31, limit=2**30).after("2s")
    return world.restart().finish_all(run="2s")


def scaling() -> World:
    """Elastic units say how they scale, grow, and are moved by what they say."""
    world = World("goodput").nodes(2, cpu=8, gpus=2)
    world.job("a", workers="1..4", gpu=1, checkpoint="10s").job("b", workers="1..4", gpu=1).round()
    for number, name in enumerate(("a", "b")):
        world.start(f"{name}.main[0]")
        attempt = Attempt(f"{world.state(name).id}.main[0]", 1)
        speedups = Speedups((1000, 1900 - 700 * number), (1000, 1500 - 400 * number, 1600 - 400 * number))
        world.hear(world.where(name)[0], Report(serial=99, told=(Told(attempt=attempt, speedups=speedups),)))
    return world.after("61s").after("1s").round().after("10m").round().finish_all(run="20s")


def training() -> World:
    """Training tells of itself: its phase makes room for another, a gang waits for one of its members and moves."""
    world = World().nodes(5, cpu=8)
    world.job("phased", cpu=8, phases="auto").job("gang", workers=3, cpu=8, checkpoint="1m").round()
    world.start("phased", *(f"gang.main[{rank}]" for rank in range(3))).drain("n5")
    for number in range(50):
        if number == 20:
            world.job("other", cpu=2)
        done, step = world.now // 3600 // 1000, world.now // SECOND
        saved = Saved(step=step, every=60 * SECOND)
        for name in ("phased.main", *(f"gang.main[{rank}]" for rank in range(3))):
            unit, task = world.task(name)
            said = Training(step=step, compute=SECOND // (1 if name == "gang.main[1]" else 3))
            if name in ("phased.main", "gang.main[0]"):
                said = msgspec.structs.replace(said, phase="fine-tuning", progress=done, safe=done, checkpoint=saved)
            told = Told(attempt=Attempt(f"{unit.job}.{name.partition('.')[2]}", unit.epoch), training=said)
            if task.status == "running":
                world.hear(task.node, Report(serial=99, told=(told,)))
        world.after("5s").round()
    return world.drain("n5", on=False).round().restart().finish_all(run="20s")


def resizing() -> World:
    """A gang says that it resizes, loses a member and grows back, makes room for another, and its node is lost."""
    world = World().nodes(4, cpu=2, gpus=1)
    world.job("train", workers="2..4", gpu=1, checkpoint="10s", expect="1h", priority="low").round()
    world.start(*(f"train.main[{index}]" for index in range(4))).resizes("train.main[0]").after("3s")
    world.finish("train.main[1]", outcome="killed").after("10s").start("train.main[1]")
    world.job("now", gpu=1, priority="urgent", expect="30s").after("1s").start("now").after("5s")
    world.finish("now", run="5s").after("10s").lose(world.where("train")[0]).after("1s")
    return world.restart().finish_all(run="40s")


def emptied() -> World:
    """A node is emptied: what may move does once there is room, a gang as a whole, and the rest goes on."""
    world = World().nodes(2, cpu=4).job("stays", cpu=1, preemptible=False).job("goes", cpu=2, checkpoint="10s").round()
    world.job("gang", workers=5, cpu=1, checkpoint="10s").round()
    world.start("stays", "goes", *(f"gang.main[{rank}]" for rank in range(5))).after("2s").drain(
        "n1", moves=True
    ).after("2s")
    world.join(node("n3", cpu=8)).after("3s").drain("n1").after("1s").drain("n1", on=False)
    return world.restart().finish_all(run="20s")


def deadlines() -> World:
    """Deadlines are lost: what waits and what runs is cancelled, with what only it needs; parts pass their turns on."""
    world = World().nodes(3, cpu=1).job("busy", cpu=1, workers=2, expect="1h", preemptible=False).round()
    late = {"by": "20s", "if-late": "cancel"}
    world.job("runs", cpu=1, expect="10s", deadline=late, **{"class": "brief"}).round()
    world.start("busy.main[0]", "busy.main[1]", "runs").after("1s")
    tasks: dict[str, dict[str, Any]] = {
        "prepare": {"cpu": 1, "expect": "5m"},
        "train": {"cpu": 1, "expect": "10m", "needs": ["prepare"], "deadline": {"by": "16m", "if-late": "cancel"}},
        "check": {"cpu": 1, "expect": "1m", "class": "check"},
        "publish": {
            "cpu": 1,
            "expect": "1m",
            "needs": ["check"],
            "deadline": late | {"by": "150s"},
            "class": "publish",
        },
        "report": {"cpu": 1, "expect": "1m", "needs": ["prepare"], "deadline": "2h"},
    }
    world.graph("graph", tasks=tasks, priority="high").job("swept", cpu=1, parts=4, at_most=1)
    world.cancel("swept.main[0]").after("32s").start("graph.prepare").after("68s")
    return world.restart().finish_all(run="2s")


def cancelled() -> World:
    """Jobs of two tenants are cancelled together: one that runs, a graph, and jobs that come after each other."""
    world = World().nodes(1, cpu=1).job("runs", cpu=1).round().start("runs")
    world.graph("graph", tasks={"a": {"cpu": 1}, "b": {"cpu": 1, "needs": ["a"]}})
    world.job("first", cpu=1).job("second", cpu=1, after=["first"]).job("third", cpu=1, after=["second"])
    world.submit({"run": "true"}, tenant="ann")
    world.ask(CancelJobs(world.request(), ("j1", "j2", "j3", "j4", "j6")))
    return world.after("1s").restart().finish_all(run="2s")


def changed() -> World:
    """Jobs are held, released, changed and tried again; others begin however one ended, or since it failed. Some may
    run on some nodes only.
    """
    world = World().join(msgspec.structs.replace(node("n1", cpu=2), zone="east")).join(node("n2", cpu=2))
    world.job("runs", cpu=2, node="n1", retry={"limit": 0}).job("held", label={"zone": "east"}, hold=True).round()
    world.start("runs").job("any", cpu=1, **{"after-any": ["runs"]}).job("failed", **{"after-failure": ["runs"]})
    world.job("slow", cpu=2, exclude_node="n2", expect="1h").change("slow", cpu=1, priority="high", deadline="2h")
    world.change("runs", weight=2, preemptible=False).after("1s").finish("runs", outcome="failed", code=3)
    world.retry("runs").hold("held", on=False).after("1s")
    return world.restart(from_checkpoint=True).finish_all(run="2s")


def recurring() -> World:
    """A schedule submits at its turns, is held and removed; a job is notified of, another one is removed."""
    world = World(dead_after=0).nodes(2, cpu=2)
    world.job("beat", cpu=1, every="10m", overlap="allow", notify=["webhook:https://hooks.example.org/poise"]).tick()
    world.round().finish("beat-1").job("nightly", cron="0 3 * * *", **{"time-zone": "Europe/Zurich"}).after("11m")
    world.ask(NoticeDone(world.request(), world.state("beat-1").id, "end/0", ""))
    world.hold_schedule("beat").after("11m").hold_schedule("beat", on=False).remove(world.state("beat-1").id)
    world.after("11m").remove_schedule("nightly")
    return world.restart(from_checkpoint=True).finish_all(run="2s")


def configured() -> World:
    """Another policy is set; a gang spreads over zones, a time limit changes while its task runs, secrets stay sealed
    and do not open once.
    """
    world = World("fifo")
    for number, zone in enumerate(("east", "west"), 1):
        world.join(msgspec.structs.replace(node(f"n{number}", cpu=4), zone=zone))
    world.job("gang", workers=2, cpu=1, spread="zone").job("limited", cpu=1, **{"time-limit": "2h"}).round()
    document = {"name": "secret", "run": "true", "secrets": {"TOKEN": "value"}}
    world.submit(sealed(document, lambda name, value: Sealed("12345678.text"))).round()
    unit = world.unit("secret")
    attempt = Attempt(f"{unit.job}.main", unit.epoch)
    world.held[world.where("secret")[0]].pop(attempt)
    world.say(Locked(attempt, "no key")).start("limited").change("limited", HOME, **{"time-limit": "3h"}).after("1s")
    world.ask(Configure(world.request(), "srtf", asked=1_000.0))
    world._policy = policy_named("srtf")
    return world.after("1s").hold("secret", on=False).restart().finish_all(run="2s")


def shrunk() -> World:
    """A node offers less than it runs, and a device no longer; a detector notices something; an incident is told."""
    world = World().join(node("n1", cpu=4, gpus=2)).job("a", cpu=2, gpu=1).job("b", cpu=2, gpu=1).round()
    world.start("a", "b").say(Saw(Noticed(at=1, kind="slow-store", text="2 s for a write")))
    world.ask(IncidentDone(world.request(), "i1", "opened", "webhook:https://hooks.example.org/poise"))
    offer = msgspec.structs.replace(world.known["n1"], cpu=1000, devices=world.known["n1"].devices[:1])
    running = tuple(Running(attempt=attempt, pid=1) for attempt in world.held["n1"])
    world.hear("n1", Hello(node=offer, running=running, withdrawn=(1,))).job("c", gpu=1).after("1s")
    world.ask(IncidentDone(world.request(), "i1", "closed", "webhook:https://hooks.example.org/poise", "status 500"))
    return world.restart(from_checkpoint=True).connect("n1").finish_all(run="2s")


def sent() -> World:
    """A job brings its files; a node of an allocation has an end, which is too early for another; who only reads."""
    world = World()
    ends = msgspec.structs.replace(node("n1", cpu=4), until=world.now + 600 * SECOND, labels={ALLOCATED: "7"})
    world.join(ends).join(node("n2", cpu=1))
    world.ask(AddToken(request=world.request(), tenant="ops", role=Role.OBSERVER, hash="1" * 64, name="watcher"))
    world.job("files", cpu=1, sync={"tree": "ab" * 32, "folder": "src"}, requirements="requirements.txt", expect="1m")
    world.job("long", cpu=1, expect="2h").job("longer", cpu=1, expect="3h").round().start("files", "long").after("1m")
    return world.restart(from_checkpoint=True).connect("n1").connect("n2").finish_all(run="2s")


def ruled() -> World:
    """A rule cordons a busy node and opens it again, one asks and is allowed; a service misses its objective."""
    rule: dict[str, Any] = {"trigger": "cpu_reserved > 50%", "clear": "cpu_reserved < 10%", "sustained_for": "1m"}
    busy = rule | {"name": "busy", "mode": "on", "actions": [{"cordon": True}]}
    hot = {"name": "hot", "mode": "shadow", "trigger": "cpu_usage > 90%", "actions": [{"notify": True}]}
    world = World().nodes(2, cpu=4)
    world.ask(SetRules(world.request(), {"kind": "rules", "rules": [busy]}, {}))
    world.job("a", cpu=4).round().start("a")
    _minutes(world, 3)
    world.say(Saw(Noticed(at=1, kind="objective-missed", subject="answers", text="P99 0.4 s", jobs=("j1",))))
    world.finish("a")
    _minutes(world, 2)
    world.ask(SetRules(world.request(), {"kind": "rules", "rules": [busy | {"mode": "ask"}, hot]}, {}))
    world.job("b", cpu=4).round().start("b")
    _minutes(world, 15)
    world.ask(AnswerRule(world.request(), "busy", world.where("b")[0], True))
    return world.restart(from_checkpoint=True).connect("n1").connect("n2").finish_all(run="2s")


def shared() -> World:
    """Two tenants and a project share a fleet: what one borrows becomes a debt, and is taken back. A policy is promoted
    for its figures and rolled back; finished jobs are forgotten by the number of their tasks.
    """
    tree = compile_shares({
        "kind": "shares",
        "shares": [
            {"tenant": "ann", "guaranteed": {"gpu": 2}},
            {"tenant": "bob", "guaranteed": {"gpu": 2}, "weight": 2},
            {"project": "vision", "in": "bob", "limit": {"gpu": 3}},
        ],
    })  # fmt: skip
    world = World("poise").nodes(2, cpu=8, gpus=2)
    world.ask(SetShares(world.request(), tree))
    for number in range(4):
        world.job(f"ann-{number}", gpu=1, tenant="ann", project="")
    world.round().start(*(f"ann-{number}" for number in range(4))).after("1h")
    world.job("bob", gpu=1, tenant="bob", project="vision").round().after("30s")
    world.finish_all(run="2s")
    world.ask(Configure(world.request(), "srtf", asked=1_000.0, why="mean completion -3.1 % (95 %: -5.0 to -1.2)"))
    world._policy = policy_named("srtf")
    world.job("swept", cpu=1, parts=20, tenant="ann").finish_all(run="2s").after("1h")
    world.restart(from_checkpoint=True, history_tasks=4).connect("n1").connect("n2").job("last", cpu=1, tenant="bob")
    world.ask(SetShares(world.request(), None))
    return world.finish_all(run="2s")


def reserved() -> World:
    """A node is kept for a tenant, twice, and another one for maintenance. Work yields to them. A lost one is replaced,
    a window is released unused, a reservation is cancelled. A quota differs by the hour.
    """
    world = World().nodes(3, cpu=4)
    world.reserve("night", tenant="ann", nodes=1, begins="+1h", length="2h", every="FREQ=DAILY;COUNT=2")
    world.reserve("cables", maintenance=True, nodes=["n3"], begins="+30m", length="1h")
    world.reserve("unused", tenant="eve", nodes=["n2"], begins="+2h", length="1h", release_after="5m")
    world.reserve("maybe", tenant="bob", devices=0, nodes=1, begins="+5h", length="1h", soft=True)
    world.quota("bob", cpu=2, hours=["20:00-08:00 cpu=4"])
    for number in range(3):
        world.job(f"long-{number}", cpu=3)
    world.round().start("long-0", "long-1", "long-2").after("62m")
    world.job("of-ann", cpu=4, tenant="ann", expect="30m").round().after("30s")
    world.unreserve("maybe")
    world.restart(from_checkpoint=True).connect("n1").connect("n2").after("90s").finish_all(run="2s")
    return world.after("2h").connect("n2").connect("n3").disconnect("n1").after("20h").connect("n2").after("3h")


def array() -> World:
    """Parts of an array, of which one fails and may; the rest is cancelled. A job names an image, and one may wait for
    clean hours.
    """
    world = World()
    for name in ("n1", "n2"):
        world.join(msgspec.structs.replace(node(name, cpu=4), labels=CONTAINERS))
    world.job("swept", cpu=1, parts=10_001, at_most=3, **{"allow-failed": "10%"}).round()
    for part in range(4):
        world.start(f"swept.main[{part}]").finish(f"swept.main[{part}]", outcome="failed" if part == 1 else "done")
        world.round()
    world.restart(from_checkpoint=True).connect("n1").connect("n2").cancel("swept").after("20s")
    world.job("inside", cpu=1, image="python:3.12").job("later", cpu=1, flexible="6h").round()
    return world.say(JudgeShadows({"srtf": "mean completion -9 %"})).after("7h").cancel("inside").finish_all(run="2s")


def suspended() -> World:
    """An idle session is suspended, its device goes to others, and it resumes when that is free again."""
    world = World().nodes(1, cpu=2, gpus=1)
    world.job("desk", cpu=1, gpu=1, gpu_share=0.5, idle={"after": "30m", "then": "suspend"}).round().start("desk")
    idle = Report(serial=99, idle=(Idle(attempt=Attempt("j1.main", 1), lasts=31 * 60 * SECOND, due=True),))
    world.after("31m").hear("n1", idle).job("next", cpu=1, gpu=1).round().start("next").after("1m")
    world.restart(from_checkpoint=True).connect("n1").ask(ResumeJob(world.request(), "desk")).after("1s")
    world.finish("next", run="1m").after("31m").hear("n1", idle).job("last", cpu=2).round()
    return world.after("1s").finish_all(run="2s")


def owned() -> World:
    """Commands of a token run as its Unix account, on the one node that has it."""
    world = World().join(msgspec.structs.replace(node("n1", cpu=4), accounts=("ann",))).join(node("n2", cpu=4))
    secret = "2" * 64
    world.ask(
        AddToken(request=world.request(), tenant="lab", role=Role.SUBMITTER, hash=secret, name="ann", account="ann")
    )
    bearer = Bearer("lab", Role.SUBMITTER, "t1", "ann", "ann")
    for number in range(3):
        document = {"name": f"own-{number}", "run": "true", "resources": {"cpu": 2}}
        made = world.controller.prepare(document, WALL, world.now, "lab")
        world.ask(Submit(world.request(), made, bearer=bearer))
    return world.round().restart(from_checkpoint=True).connect("n1").connect("n2").finish_all(run="2s")


def budgeted() -> World:
    """Somebody signs in, and renews the token later. The budget of the tenant is spent: new work is held until the next
    day.
    """
    world = World().nodes(1, cpu=8, gpus=1)
    person = SignedIn(
        request=world.request(),
        hash="3" * 64,
        subject="https://id.example.org 42",
        name="ann",
        tenant="lab",
        role=Role.SUBMITTER,
        account="",
        lasts=8 * 3600 * SECOND,
    )
    budget = {"name": "lab", "tenant": "lab", "amount": "1h", "every": "day", "at_limit": "hold"}
    world.ask(person).budgets(budget).job("a", gpu=1, tenant="lab").round().start("a").after("61m")
    world.job("late", cpu=1, tenant="lab").after("1s").round()
    world.ask(msgspec.structs.replace(person, request=world.request(), renews=True)).finish("a")
    world.restart(from_checkpoint=True).connect("n1").after("47m")
    return world.finish_all(run="2s")


def steered() -> World:
    """A control loop changes a quota. The memory limit of running work becomes larger."""
    world = World().nodes(1, cpu=16, memory="8GiB", grows=True).quota("default", cpu=4)
    loop = {"knob": "quota.cpu", "of": "default", "target": {"fleet_use": "50%"}, "least": 2, "most": 16}
    rule = {"name": "half", "mode": "on", "trigger": "nodes_up > 0", "clear": "nodes_up == 0"}
    document = {"kind": "rules", "every": "30s", "rules": [rule | {"actions": [{"control": loop}]}]}
    world.ask(SetRules(world.request(), document)).job("big", resources={"memory": "2GiB"})
    for _ in range(20):
        world.job(cpu=1)
    _minutes(world.round().start("big"), 3)
    world.change("big", HOME, resources={"memory": "4GiB"}).restart(from_checkpoint=True).connect("n1")
    world.ask(SetRules(world.request(), document | {"rules": []}))
    return world.finish_all(run="2s")


def served() -> World:
    """Gateways report services. A rule adds replicas to a slow one, and a control loop to another. One ends."""
    slow = {"name": "slow", "mode": "on", "trigger": "service_waiting > 3", "scope": ["chat"]}
    actions = [{"scale_up_replicas": {"by": 2}}, {"notify": True}]
    target = {"service_p99_of_objective": "80%"}
    loop = {"knob": "replicas", "of": "lab:image", "target": target, "effect": "lowers", "least": 0, "most": 8}
    hold = {"name": "hold", "mode": "on", "trigger": "nodes_up > 0", "clear": "nodes_up == 0"}
    world = World().nodes(1, cpu=4).job("chat-1").job("image-1", tenant="lab").round()
    rules = [slow | {"actions": actions}, hold | {"actions": [{"control": loop}]}]
    world.ask(SetRules(world.request(), {"kind": "rules", "every": "10s", "rules": rules}))
    for minute in range(14):
        image = Served(rate=40_000, p99=(400 - 20 * minute) * MILLISECOND, objective=300 * MILLISECOND, ready=2)
        world.ask(HearServices(world.request(), "lab", "0a1b2c3d", {"lab:image": image}))
        if minute < 3:
            chat = Served(rate=2_500, refused=25, waiting=9 * minute, ready=1, wanted=1)
            world.ask(HearServices(world.request(), "default", "4e5f6071", {"chat": chat}))
        _minutes(world, 1)
    return world.restart(from_checkpoint=True).connect("n1").finish_all(run="2s")


SCENES: tuple[Callable[[], World], ...] = (
    noops, gangs, lost, calls, tenants, troubles, scaling, training, resizing, emptied, deadlines, cancelled,
    changed, recurring, configured, shrunk, sent, ruled, shared, reserved, array, suspended,
    owned, budgeted, steered, served,
)  # fmt: skip


def state_of(ledger: Ledger) -> Any:
    """All that a ledger knows, as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(msgspec.msgpack.decode(ledger.encode())))


RETIRED = {"wakes"}
"""Fields that were written once and read by nobody: a reason said after which events to ask again."""


def unsaid(then: Any, now: Any, at: str = "") -> list[str]:
    """Where what was said then is not what is said now. More may be said now: fields that there were none of."""
    if isinstance(then, dict) and isinstance(now, dict):
        said = [key for key in then if key not in RETIRED]
        return [miss for key in said for miss in unsaid(then[key], now.get(key), f"{at}.{key}")]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [miss for place, of in enumerate(then) for miss in unsaid(of, now[place], f"{at}[{place}]")]
    return [] if then == now else [f"{at}: {then!r} then, {now!r} now"]


def _minutes(world: World, count: int) -> None:
    """So long, in which nodes say how busy they are."""
    for _ in range(4 * count):
        for name in sorted(world.connected):
            world.hear(name, Beat(number=1, load=Load(cpu=950 if world.held[name] else 20, load1=10)))
        world.after("15s")


def _say(world: World, attempt: Attempt, message: Any) -> None:
    world.say(FromCallWorker(attempt, message))


def _events(path: Path) -> list[Event]:
    with open_log(path, decode_event) as recording:
        return list(recording.events)


def _is_told_by(path: Path, world: World) -> bool:
    """Whether an older log has the same records and makes the same state, but for what its `Began` says."""
    if _but_began(_events(path)) != _but_began(world.log):
        return False
    then = msgspec.json.decode(path.with_suffix(".json").read_bytes())
    return unsaid(then | {"began": None}, state_of(world.ledger) | {"began": None}) == []


def _but_began(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, Began)]


def main() -> None:
    number = max((int(folder.name) for folder in HERE.iterdir() if folder.name.isdigit()), default=0) + 1
    folder = HERE / str(number)
    folder.mkdir()
    for scene in SCENES:
        world = scene()
        file = folder / f"{scene.__name__}.log"
        if any(_is_told_by(old, world) for old in HERE.glob(f"*/{file.name}")):
            continue
        write_log(file, map(encode_event, world.log), start=None, written_by=__version__)
        state = msgspec.json.encode(state_of(world.ledger), order="deterministic")
        file.with_suffix(".json").write_bytes(msgspec.json.format(state, indent=1) + b"\n")
        print(file, len(world.log))  # noqa: T201 — a script


if __name__ == "__main__":
    main()
