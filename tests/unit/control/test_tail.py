"""The last lines of what a job wrote, and then what it writes."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from poise.config import Home
from poise.drivers.keeper import note_time
from poise.drivers.places import log_paths
from poise.model.messages import Attempt
from poise.testing import World
from poise.units import SECOND
from unit.control.desk import Desk


def pieces(desk: Desk, asked: str) -> list[Any]:
    lines = map(json.loads, desk.call("GET", f"/v1/jobs/a/logs?{asked}").body.splitlines())
    return [line for line in lines if line["kind"] == "piece"]


def told(desk: Desk, asked: str) -> str:
    return b"".join(base64.b64decode(piece["data"]) for piece in pieces(desk, asked)).decode()


def test_only_the_last_lines_of_the_latest_attempt_are_given(tmp_path: Path) -> None:
    world = World().nodes(1).job("a", retry={"limit": 1, "backoff": 0}).round().start("a").finish("a", outcome="failed")
    world.round().start("a").finish("a")
    for epoch in (1, 2):
        out, err = log_paths(Home(tmp_path).logs, Attempt("j1.main", epoch))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(f"one {epoch}\ntwo {epoch}\nthree {epoch}\n".encode())
        err.write_bytes(f"error {epoch}\n".encode())
    desk = Desk(world, logs=tmp_path)

    assert told(desk, "tail=2") == "two 2\nthree 2\nerror 2\n"
    assert told(desk, "tail=0") == ""
    assert told(desk, "").startswith("one 1\n")
    assert desk.call("GET", "/v1/jobs/a/logs?tail=-2").status == 422


def test_what_was_written_since_a_time_and_when(tmp_path: Path) -> None:
    desk = Desk(World().nodes(1).job("a").round().start("a"), logs=tmp_path)
    out, _ = log_paths(Home(tmp_path).logs, Attempt("j1.main", 1))
    out.parent.mkdir(parents=True)
    out.write_bytes(b"one\ntwo\nthree\n")
    for size, at in ((4, 100), (6, 200), (14, 300)):
        note_time(str(out), size, at * SECOND)
    assert [told(desk, f"since={since}") for since in (100, 101, 200.5, 300.5)] == [
        "one\ntwo\nthree\n",
        "two\nthree\n",
        "two\nthree\n",
        "",
    ]
    assert told(desk, "since=101&tail=1") == "three\n"
    assert [(base64.b64decode(piece["data"]), piece["at"]) for piece in pieces(desk, "")] == [
        (b"one\n", 100.0),
        (b"tw", 200.0),
        (b"o\nthree\n", 300.0),
    ]


def test_the_ranks_of_a_gang(tmp_path: Path) -> None:
    desk = Desk(World().nodes(1, cpu=4).job("a", workers=2).round().start("a.main[0]", "a.main[1]"), logs=tmp_path)
    for rank in (0, 1):
        out, _ = log_paths(Home(tmp_path).logs, Attempt(f"j1.main[{rank}]", 1))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(b"%d\n" % rank)
    assert [(base64.b64decode(piece["data"]), piece["rank"]) for piece in pieces(desk, "")] == [
        (b"0\n", 0),
        (b"1\n", 1),
    ]
    assert [(base64.b64decode(piece["data"]), piece["rank"]) for piece in pieces(desk, "rank=1")] == [(b"1\n", -1)]
    refused = desk.call("GET", "/v1/jobs/a/logs?rank=2")
    assert (refused.status, refused.value["error"]["have"]) == (404, "ranks 0 to 1")


def test_who_follows_hears_of_the_end_when_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at the next look at the output, which may be a quarter of a second later."""
    world = World().nodes(1).job("a").round().start("a")
    desk = Desk(world, logs=tmp_path)
    asked: list[str] = []

    async def ends(job: str, within: float) -> None:
        asked.append(job)
        world.finish("a")

    monkeypatch.setattr(desk.plane, "ends", ends)
    lines = [*map(json.loads, desk.call("GET", "/v1/jobs/a/logs?follow=true").body.splitlines())]
    assert (lines[-1]["kind"], lines[-1]["exit_code"], asked) == ("end", 0, ["j1"])
