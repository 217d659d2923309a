"""Rows 9 and 10: the disk of the log or of a node is full, and the log is damaged."""

import contextlib
import random
import time

from system.damage import cut, fill, filled, flip, history, small_disk, tear
from system.living import PATIENCE, Diary, Living, kill, until

from chaos.turns import SLEEP, SMALL, Stage, Turn, replaced, running, untouched
from poise.errors import PoiseError

FLIPS = 5
WAITING = 4
"""Commands that are submitted while the disk of their node is full."""


# --- 9, 10: the log's disk -------------------------------------------------------------------------------------------


def disk_full(living: Stage) -> Turn:
    """New work is refused and reading goes on; nobody is restarted, and what was accepted is done."""
    living.use(small_disk(living, "6m"))
    living.up()
    pids = living.pid("control"), living.pid("agent")
    job, pid = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}})
    ballast = filled(living.home.root, leaving=1_200_000)
    assert fill(living).record.code == "E202"
    client = living.client()
    begun = time.monotonic()
    refused = living.poise("submit", "--json", "--", "true")
    noticed = time.monotonic() - begun
    assert refused.error["code"] == "E202", refused
    accepted = [report.id for report in client.jobs(everything=True)]
    assert job in accepted and client.job(job).tasks and client.nodes()
    ballast.unlink()
    freed = time.monotonic()
    until(lambda: _accepts(living), "it accepts work again", living.messages)
    recovered = time.monotonic() - freed
    assert (living.pid("control"), living.pid("agent")) == pids, "somebody was restarted"
    untouched(living, job, pid)
    for name in accepted:
        assert name == job or client.wait(name, PATIENCE).status == "done", f"{name} was accepted"
    return Turn([noticed], [recovered])


def _accepts(living: Living) -> bool:
    with contextlib.suppress(PoiseError):
        return bool(living.client().submit(SMALL))
    return False


def node_disk_full(living: Stage) -> Turn:
    """A node that cannot record what it starts starts nothing, and says so, though its agent and its keepers are killed
    meanwhile. Nothing runs twice. *recovered*: from when there is room until all that waited has run.
    """
    living.use(small_disk(living, "4m", living.home.node))
    living.up()
    client, diary = living.client(), Diary(living.work / "diary")
    assert client.wait(client.submit(SMALL), PATIENCE).status == "done"
    ballast = filled(living.home.node, leaving=0)
    begun = time.monotonic()
    jobs = [client.submit({"run": diary.command(0.1), "resources": {"cpu": 0.1}}) for _ in range(WAITING)]
    until(lambda: client.nodes()[0].status == "unfit", "the node says so", living.messages)
    noticed = time.monotonic() - begun
    until(lambda: not any(report.status == "running" for report in client.jobs()), "what could be recorded has ended")
    agent = living.pid("agent")
    for pid in (agent, *living.keepers()):
        kill(pid)
    replaced(living, "agent", agent)
    ballast.unlink()
    freed = time.monotonic()
    assert {client.wait(job, PATIENCE).status for job in jobs} == {"done"}
    recovered = time.monotonic() - freed
    diary.check()
    assert sorted(diary.endings()) == sorted(f"{job}.main" for job in jobs), "something ran twice"
    return Turn([noticed], [recovered])


def bits_flipped(living: Stage) -> Turn:
    """Each flipped bit is found when the log is read, the file is left alone, and nobody goes on with it."""
    history(living)
    whole = living.home.log.read_bytes()
    chance = random.Random(living.home.root.name)
    turn = Turn()
    for revision in chance.sample(range(1, 150), FLIPS):
        flip(living.home, revision)
        damaged = living.home.log.read_bytes()
        begun = time.monotonic()
        refused = living.poise("up", "--json")
        turn.noticed.append(time.monotonic() - begun)
        assert (refused.code, refused.error["code"]) == (2, "E203"), refused
        assert str(revision) in refused.error["message"], refused
        assert living.home.log.read_bytes() == damaged, "the file was changed"
        living.home.log.write_bytes(whole)
    return turn


def tail_torn(living: Stage) -> Turn:
    """What was acknowledged is there; what is cut is said."""
    jobs = history(living)
    living.up()
    running(living, {"run": SLEEP})
    tear(living)
    begun = time.monotonic()
    living.up()
    recovered = time.monotonic() - begun
    left = {report.id for report in living.client().jobs(everything=True)}
    assert set(jobs) <= left, "what was acknowledged is gone"
    assert "the log is taken to end at revision" in living.messages(), "nothing was said of it"
    assert living.poise("run", "--", "echo", "on").text == "on\n"
    return Turn([], [recovered])


def log_cut(living: Stage) -> Turn:
    """What was acknowledged is missing: only a person may go on, who puts back what was kept elsewhere."""
    jobs = history(living)
    whole = living.home.log.read_bytes()
    cut(living.home)
    begun = time.monotonic()
    refused = living.poise("up", "--json")
    noticed = time.monotonic()
    assert (refused.code, refused.error["code"]) == (2, "E203"), refused
    living.home.log.write_bytes(whole)
    put_back = time.monotonic()
    living.up()
    recovered = time.monotonic()
    left = {report.id for report in living.client().jobs(everything=True)}
    assert set(jobs) <= left, "what was acknowledged is gone"
    return Turn([noticed - begun], [recovered - put_back])
