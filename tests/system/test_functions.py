"""Functions from a user's program: real workers, real deaths. The program is tests/system/program.py."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from system.living import Living

PROGRAM = Path(__file__).with_name("program.py")


def run(living: Living, act: str, *arguments: str, program: Path = PROGRAM) -> Any:
    done = subprocess.run(
        [sys.executable, str(program), act, *arguments],
        cwd=living.work,
        env=living.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_values_come_back_as_they_were(shared: Living) -> None:
    assert run(shared, "values") == {
        "square": 49,
        "local": 49,
        "tuple": 2,
        "files": 300_000,
        "array": [30, 50],
        "lambda": 3,
        "text": 9,
    }
    left = [path for path in shared.home.values.rglob("*") if path.is_file()]
    assert left == [], "files of values stay behind"


def test_futures_in_arguments_make_a_graph(shared: Living) -> None:
    found = run(shared, "graph")
    assert found["deep"] == 1 + 30 and found["gather"] == [0, 1, 4, 9, 16]
    assert "was not called" in found["skipped"]


def test_a_failure_is_the_users_exception_with_its_traceback(shared: Living) -> None:
    assert run(shared, "failure") == {"message": "no 5", "where": True}


def test_workers_that_die_cost_a_try_and_nothing_else(shared: Living) -> None:
    found = run(shared, "deaths", str(shared.work))
    assert (found["once"], found["retries"], found["after"]) == ("alive", 2, 4)
    assert "ended 4 times" in found["always"]


def test_map_cuts_by_itself_and_keeps_the_order(shared: Living) -> None:
    found = run(shared, "map")
    assert found["sum"] == sum(value * value for value in range(50_000))
    assert found["star"] == [0, 2, 4] and found["chunk"] == [value * value for value in range(10)]
    assert found["repr"] == "<poise.Mapped square 50000 of 50000 done>" and "in the item 1" in found["note"]


def test_futures_maps_and_clients_can_be_awaited(shared: Living) -> None:
    assert run(shared, "async") == [9, [0, 1, 4, 9, 16], 0]


def test_a_gang_is_called_together(shared: Living) -> None:
    assert run(shared, "gang") == {"members": [["a", 0, 2], ["a", 1, 2]], "why": "rank 1"}


def test_a_call_that_takes_too_long_is_stopped(shared: Living) -> None:
    found = run(shared, "limits", str(shared.work))
    assert found["still"] == 1, "it hung once; a call with progress may take longer"
    assert "time limit of 300 ms" in found["call"] and "failed" in found["gang"]
    assert found["map"][0] == [0, 1, 2] and "in the item 3" in found["map"][1]
    assert found["after"] == 4


def test_workers_stay_warm(shared: Living) -> None:
    assert run(shared, "warm") <= 2


def test_a_call_that_nobody_has_begun_is_cancelled(shared: Living) -> None:
    found = run(shared, "cancel")
    assert found == {"cancelled": True, "others": 49, "first": 4}


def test_what_is_odd_is_said_and_stops_nothing(shared: Living) -> None:
    assert run(shared, "odd") == {
        "stop": "the function raised StopIteration",
        "mute": "MuteError",
        "kept": 10,
        "many": 1500,
        "set": True,
        "after": 25,
    }


def test_a_module_that_is_run_finds_its_own_classes_again(shared: Living) -> None:
    package = shared.work / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "kinds.py").write_text("class Kind(Exception):\n    pass\n")
    (package / "__main__.py").write_text(
        "import poise\nfrom .kinds import Kind\nclass Own(Kind):\n    pass\n"
        "@poise.task\ndef fails(kind):\n    raise kind('x')\n"
        'if __name__ == "__main__":\n'
        "    for kind in (Kind, Own):\n"
        "        try:\n            fails.submit(kind).result()\n"
        "        except kind:\n            print('caught')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "package"],
        cwd=shared.work,
        env=shared.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "caught\ncaught\n", done.stderr


def test_what_was_submitted_is_made_even_if_nobody_waits(shared: Living) -> None:
    run(shared, "left", str(shared.work))
    deadline = time.monotonic() + 20
    while len(list(shared.work.glob("left-*"))) < 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(list(shared.work.glob("left-*"))) == 20


def test_a_job_of_calls_is_shown_with_its_calls(shared: Living) -> None:
    run(shared, "warm")
    job = shared.poise("ls", "--json").value[-1]
    shown = shared.poise("show", job["id"], "--json").value
    assert shown["calls"]["done"] == 20 and shown["calls"]["open"] == 0
    assert "20 calls done" in shared.poise("show", job["id"]).text


def test_a_killed_control_plane_loses_no_call_and_doubles_none(living: Living) -> None:
    living.up()
    found, expected = run(living, "killed")
    assert found == expected


def test_a_script_that_guards_nothing_is_told_so(shared: Living) -> None:
    script = shared.work / "unguarded.py"
    script.write_text("import poise\n@poise.task\ndef f(): return 1\nprint(f.submit().result())\n")
    done = subprocess.run(
        [sys.executable, str(script)], env=shared.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and '__name__ == "__main__"' in done.stderr


@pytest.mark.parametrize("source", ["f = poise.task(lambda x: x + 1)", "@poise.task\ndef f(x): return C(x).x + 1"])
def test_what_a_prompt_defines_travels_by_value(shared: Living, source: str) -> None:
    code = f"import poise\nclass C:\n    def __init__(self, x): self.x = x\n{source}\nprint(f.submit(1).result())\n"
    done = subprocess.run(
        [sys.executable, "-"],
        input=code,
        env=shared.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "2\n", done.stderr


def test_functions_of_modules_and_of_the_script_meet_in_one_worker(shared: Living) -> None:
    (shared.work / "part.py").write_text("import poise\n@poise.task\ndef twice(x):\n    return 2 * x\n")
    script = shared.work / "whole.py"
    script.write_text(
        "import sys, poise\nfrom part import twice\n"
        "@poise.task\ndef thrice(x):\n    return 3 * x\n"
        "def act_both():\n    return [twice.submit(1).result(), thrice.options().submit(twice.submit(1)).result()]\n"
        'if __name__ == "__main__":\n    print(act_both())\n'
    )
    assert run(shared, "both", program=script) == [2, 6]
