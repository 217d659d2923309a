"""The last lines of what a job wrote, and then what it writes."""

import base64
import json
from pathlib import Path

from poise.config import Home
from poise.drivers.process import log_paths
from poise.model.messages import Attempt
from poise.testing import World
from unit.control.desk import Desk


def test_only_the_last_lines_of_the_latest_attempt_are_given(tmp_path: Path) -> None:
    world = World().nodes(1).job("a", retry={"limit": 1, "backoff": 0}).round().start("a").finish("a", outcome="failed")
    world.round().start("a").finish("a")
    for epoch in (1, 2):
        out, err = log_paths(Home(tmp_path).logs, Attempt("j1.main", epoch))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(f"one {epoch}\ntwo {epoch}\nthree {epoch}\n".encode())
        err.write_bytes(f"error {epoch}\n".encode())
    desk = Desk(world, logs=tmp_path)

    def told(asked: str) -> str:
        lines = map(json.loads, desk.call("GET", f"/v1/jobs/a/logs?{asked}").body.splitlines())
        return b"".join(base64.b64decode(line["data"]) for line in lines if line["kind"] == "piece").decode()

    assert told("tail=2") == "two 2\nthree 2\nerror 2\n"
    assert told("tail=0") == ""
    assert told("").startswith("one 1\n")
    assert desk.call("GET", "/v1/jobs/a/logs?tail=-2").status == 422
