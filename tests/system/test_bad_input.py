"""Bad input, through the command line and the API: an error with code, field and hint; nothing else disturbed."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from system.calls import Answer, Caller, read_answer
from system.living import POISE, Living, resident, until

ECHO = {"run": ["echo", "hello"]}
MIB = 2**20

MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, file=sys.stderr)
sys.exit(code)
"""
"""Runs a command, and tells the most memory that it held."""


@pytest.fixture(scope="module")
def caller(shared: Living) -> Iterator[Caller]:
    """All tests here run beside one job, which none of them may disturb, nor the processes that run it. It yields to
    nobody: some of what is sent here is good, and urgent enough to be given its room.
    """
    asked = ("--cpu", "0.1", "--no-preempt", "--name", "undisturbed")
    job = shared.poise("submit", *asked, "--", "sleep", "300").text.strip()
    until(shared.tasks, "it runs")
    before = (shared.tasks(), shared.pid("control"), shared.pid("agent"))
    yield Caller(shared)
    assert (shared.tasks(), shared.pid("control"), shared.pid("agent")) == before
    assert shared.poise("show", job, "--json").value["status"] == "running"
    assert shared.poise("run", "--cpu", "0.1", "--", "echo", "fine") == (0, b"fine\n", "")
    assert "Traceback" not in shared.messages()


def graph(**tasks: Any) -> dict[str, Any]:
    return {"kind": "graph", "tasks": tasks}


BAD: dict[str, tuple[Any, str, str, str]] = {
    "a cycle": (
        graph(a={"run": "x", "needs": ["c"]}, b={"run": "x", "needs": ["a"]}, c={"run": "x", "needs": ["b"]}),
        "E106",
        "tasks.",
        "a",
    ),
    "a need of itself": (graph(a={"run": "x", "needs": ["a"]}), "E106", "tasks.a.needs", "a"),
    "a dangling need": (
        graph(train={"run": "x", "needs": ["prepar"]}, prepare={"run": "x"}),
        "E105",
        "tasks.train.needs",
        "did you mean `prepare`",
    ),
    "an unknown job before it": (ECHO | {"after": ["j99999"]}, "E105", "after", "j99999"),
    "too many CPUs": (ECHO | {"resources": {"cpu": 4096}}, "E110", "resources", "closest"),
    "too much memory": (ECHO | {"resources": {"memory": "900TiB"}}, "E110", "resources", "closest"),
    "a device too many": (ECHO | {"resources": {"gpu": 999}}, "E110", "resources", "closest"),
    "a gang that cannot start whole": (ECHO | {"workers": 999}, "E110", "workers", "room for"),
    "a negative number": (ECHO | {"resources": {"cpu": -1}}, "E103", "resources.cpu", "-1"),
    "a negative memory": (ECHO | {"resources": {"memory": "-1GiB"}}, "E103", "resources.memory", "-1GiB"),
    "no workers": (ECHO | {"workers": 0}, "E103", "workers", "1 to"),
    "minus one device": (ECHO | {"resources": {"gpu": -1}}, "E103", "resources.gpu", "0 to"),
    "an absurd number": (ECHO | {"resources": {"memory": 10**30}}, "E103", "resources.memory", ""),
    "an absurd duration": (ECHO | {"expect": "99999999999h"}, "E103", "expect", ""),
    "absurdly many parts": (ECHO | {"parts": 10**9}, "E103", "parts", ""),
    "not a number": (ECHO | {"resources": {"cpu": "nan"}}, "E103", "resources.cpu", "nan"),
    "a unit without meaning": (ECHO | {"resources": {"memory": "12 parsec"}}, "E103", "resources.memory", "parsec"),
    "a time without meaning": (ECHO | {"deadline": "30 bananas"}, "E103", "deadline", "bananas"),
    "no command": ({}, "E104", "run", ""),
    "an empty command": ({"run": []}, "E104", "run", ""),
    "an empty text": ({"run": "  "}, "E104", "run", ""),
    "a task without a command": (graph(a={}), "E104", "tasks.a.run", ""),
    "a graph without tasks": ({"kind": "graph"}, "E104", "tasks", ""),
    "a deadline in the past": (ECHO | {"deadline": "2020-01-01T00:00:00Z"}, "E108", "deadline", "2020"),
    "a deadline of no time": (ECHO | {"deadline": "0s"}, "E108", "deadline", ""),
    "a way to be late that is none": (
        ECHO | {"deadline": {"by": "1h", "if-late": "panic"}},
        "E102",
        "deadline.if-late",
        "refuse",
    ),
    "what is late without a deadline": (ECHO | {"deadline": {"if-late": "cancel"}}, "E102", "deadline.by", ""),
    "a moment without a zone": (ECHO | {"deadline": "2050-01-01T00:00:00"}, "E103", "deadline", "zone"),
    "a name that is taken": (ECHO | {"name": "undisturbed"}, "E107", "name", "taken"),
    "a name that is none": (ECHO | {"name": "../../etc"}, "E107", "name", ""),
    "an unknown field": (ECHO | {"pritority": "high"}, "E102", "pritority", "did you mean `priority`"),
    "an unknown priority": (ECHO | {"priority": "highest"}, "E102", "priority", ""),
    "a value of another type": ({"run": 7}, "E102", "run", ""),
    "a variable's name that is none": (ECHO | {"env": {"A=B": "1"}}, "E107", "env.A=B", ""),
    "a zero byte": ({"run": ["echo", "a\0b"]}, "E104", "run", ""),
    "a zero byte in the folder": (ECHO | {"folder": "/srv/a\0b"}, "E102", "folder", ""),
}


@pytest.mark.parametrize("what", BAD)
def test_refused_with_code_field_and_hint(caller: Caller, what: str) -> None:
    spec, code, field, says = BAD[what]
    path = caller.living.file("bad.yaml", json.dumps(spec))
    typed = caller.living.poise("submit", path, "--json")
    assert typed.code == 1
    answer = caller.submit(spec)
    assert 400 <= answer.status < 500
    for error in (typed.error, answer.error):
        assert error["code"] == code, error
        assert error["field"].startswith(field), error
        assert says in json.dumps(error, ensure_ascii=False), error
        assert error.get("hint"), error
    assert f"error[{code}]: " in caller.living.poise("submit", path).err


def test_everything_wrong_with_a_file_is_told_at_once(caller: Caller) -> None:
    text = "rn: x\npriority: hihg\nresources: {gpus: 1, memory: lots}\n"
    path = caller.living.file("wrong.yaml", text)
    fields = {"rn": "1:1", "priority": "2:1", "resources.gpus": "3:13", "resources.memory": "3:22"}
    for verb in ("submit", "plan"):
        error = caller.living.poise(verb, path, "--json").error
        told = [error, *error["others"]]
        assert {one["field"]: one["at"].rpartition("wrong.yaml:")[2] for one in told} == fields
        assert all(one["hint"] for one in told)
    answered = caller.submit({"rn": "x", "priority": "hihg", "resources": {"gpus": 1, "memory": "lots"}}).error
    assert {one["field"] for one in (answered, *answered["others"])} == fields.keys()
    shown = caller.living.poise("submit", path).err
    assert shown.index("wrong.yaml:1:1") < shown.index("wrong.yaml:3:22")
    assert shown.endswith("4 errors\n")


def test_a_script_with_directives(caller: Caller) -> None:
    lines = '#!/bin/sh\n#POISE cpu=0.1 env=WHO=me\n#SBATCH --mem=1G -J from-slurm\necho "$WHO $1"\n'
    script = caller.living.file("script.sh", lines)
    done = caller.living.poise("run", script, "twice")
    assert (done.code, done.out) == (0, b"me twice\n")
    assert "from-slurm" in [job.name for job in caller.living.client().jobs()]
    wrong = caller.living.poise("run", caller.living.file("wrong.sh", "#POISE cpu=many\n"), "--json")
    assert (wrong.code, caller.living.poise("submit", caller.living.file("late.sh", "echo\n#POISE gpu=1\n")).code) == (
        125,
        1,
    )


def test_a_sweep_shows_the_results_by_what_was_tried(caller: Caller) -> None:
    sweep = ("--sweep", "lr=0.1,0.01", "--sweep", "seed=1..2", "--at-most", "2", "--cpu", "0.1")
    command = ("--", "sh", "-c", "echo {lr}{seed} > $POISE_RESULT")
    job = caller.living.poise("submit", *sweep, *command).text.strip()
    assert caller.living.poise("wait", job).code == 0
    tasks = caller.living.poise("show", job, "--json").value["tasks"]
    assert [(task["sweep"], task["result"]) for task in tasks] == [
        ({"lr": lr, "seed": seed}, float(f"{lr}{seed}")) for lr in ("0.1", "0.01") for seed in ("1", "2")
    ]
    shown = caller.living.poise("show", job).text
    assert "LR" in shown and "0.012" in shown


def test_a_cycle_is_named_from_end_to_end(caller: Caller) -> None:
    error = caller.submit(BAD["a cycle"][0]).error
    named = error["message"].split(": ", 1)[1]
    assert {word for word in named.replace("→", " ").split() if word in "abc"} == {"a", "b", "c"}


# --- files -----------------------------------------------------------------------------------------------------------

FILES = {
    "a tag": ("run: !!python/object/apply:os.system ['touch pwned']\n", "E101"),
    "a key twice": ("run: echo 1\nrun: echo 2\n", "E107"),
    "a list": ("- run: echo\n", "E101"),
    "nothing": ("", "E101"),
    "half a file": ("run: [echo, 'hello\n", "E101"),
    "tabs": ("run:\n\t- echo\n", "E101"),
    "two documents": ("run: echo 1\n---\nrun: echo 2\n", "E101"),
    "an alias of nothing": ("run: *nothing\n", "E101"),
    "a file that contains itself": ("tasks: &t {a: *t}\n", "E101"),
    "a deep one": ("env: " + "{a: " * 60 + "1" + "}" * 60 + "\n", "E101"),
    "a deep one by aliases": (
        "".join(f"x{n}: &x{n} " + "[" * 10 + (f"*x{n - 1}" if n else "1") + "]" * 10 + "\n" for n in range(90)),
        "E101",
    ),
    "a bomb": (
        'a: &a ["x","x","x","x","x","x","x","x","x"]\n'
        + "".join(
            f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
            for before, name in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "E101",
    ),
    "a number of many digits": (f"run: echo\nworkers: {'9' * 5000}\n", "E101"),
    "a key that is no text": ("run: echo\n? [a, b]\n: c\n", "E102"),
}


@pytest.mark.parametrize("what", FILES)
def test_files_that_are_not_read(caller: Caller, what: str) -> None:
    text, code = FILES[what]
    done = caller.living.poise("submit", caller.living.file("file.yaml", text), "--json")
    assert done.code == 1
    assert done.error["code"] == code, done.error
    assert "file.yaml" in done.error["field"]
    assert done.error.get("hint"), done.error
    assert not (caller.living.work / "pwned").exists()


def test_bytes_that_are_no_text(caller: Caller) -> None:
    path = caller.living.work / "bytes.yaml"
    path.write_bytes(b"run: echo \xff\xfe\n")
    assert caller.living.poise("submit", path, "--json").error["code"] == "E101"
    for command in (("submit", "--json", "--"), ("run", "--json", "--")):
        done = caller.living.poise(*command, "echo", b"\xff\xfe")
        assert done.code == (1 if command[0] == "submit" else 125)
        assert done.error["code"] == "E101"


def test_a_file_of_100_mb_is_refused_at_once_and_costs_no_memory(caller: Caller) -> None:
    path = caller.living.work / "large.yaml"
    with path.open("wb") as file:
        file.write(b"run: echo\nenv:\n")
        file.truncate(100 * 10**6)
    before = time.monotonic()
    measured = subprocess.run(
        [sys.executable, "-c", MEASURED, POISE, "submit", path, "--json"],
        env=caller.living.environment(),
        capture_output=True,
        check=False,
    )
    assert time.monotonic() - before < 5
    assert measured.returncode == 1
    assert json.loads(measured.stdout)["error"].items() >= {"code": "E101", "have": "95.4 MiB"}.items()
    path.unlink()
    assert int(measured.stderr.split()[-1]) < 150 * MIB


# --- bodies ----------------------------------------------------------------------------------------------------------

VALID = json.dumps(
    {
        "spec": {
            "kind": "graph",
            "env": {"A": "b"},
            "tasks": {
                "a": {"run": ["true"], "resources": {"cpu": "100m", "memory": "1MiB"}, "retry": {"limit": 0}},
                "b": {
                    "run": "true",
                    "needs": ["a"],
                    "priority": "high",
                    "deadline": "30m",
                    "parts": 2,
                    "merge": "true",
                },
            },
        },
        "user": "somebody",
    }
).encode()

PIECES = [
    b"null", b"-1", b"1e308", b"1e999", b"99999999999999999999", b'"\\ud800"', b'"\\u0000"', b"{}", b"[]",
    b"true", b'"nan"',
    b"[" * 3000, b"{" * 3000, b'"' + b"x" * 5000 + b'"', b'{"a":' * 600, b"\xff", b"\x00", b"}", b",", b'"', b"NaN",
    "💥".encode(),
]  # fmt: skip


def mutated(chance: random.Random) -> bytes:
    """A valid body with some of it cut out, put twice, or replaced."""
    body = VALID
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        start = chance.randrange(len(body) + 1)
        end = min(len(body), start + chance.choice((0, 1, 2, 8, 40)))
        put = chance.choice((b"", body[start:end] * 2, chance.choice(PIECES), bytes([chance.randrange(256)])))
        body = body[:start] + put + body[end:]
    return body


def test_mutated_bodies_are_answered_and_change_nothing(caller: Caller) -> None:
    chance = random.Random(2)  # noqa: S311 — a seed, not a secret
    control = caller.living.pid("control")
    for _ in range(50):  # so that what is cached is there before memory is measured
        caller.call("POST", "/v1/jobs", mutated(chance))
    before = resident(control)
    accepted = 0
    for _ in range(450):
        body = mutated(chance)
        answer = caller.call("POST", "/v1/jobs", body)
        assert answer.status == 201 or 400 <= answer.status < 500, (body, answer)
        accepted += answer.status == 201
        if answer.status != 201:
            assert answer.error["code"].startswith("E1"), (body, answer)
            assert answer.error["message"]
    assert 0 < accepted < 450
    assert resident(control) - before < 24 * MIB
    client = caller.living.client()
    for job in client.jobs(everything=True):
        if job.name != "undisturbed":
            client.wait(job.id, 60)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"spec": 5}',
        b'{"spec": {}, "more": 1}',
        b'{"spec": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b'{"spec": {"run": "\xff"}}',
        b'{"spec": {"run": "\\ud800"}}',
        b'{"spec": {"run": "true"}, "key": "' + b"k" * 1000 + b'"}',
    ],
    ids=lambda body: body[:24].decode("latin-1"),
)
def test_bodies_that_are_no_submission(caller: Caller, body: bytes) -> None:
    for kind in ("application/json", "application/x-ndjson", "application/x-ndjson; charset=utf-8"):
        answer = caller.call("POST", "/v1/jobs", body, Content_Type=kind)
        if kind == "application/json":
            assert answer.status in (400, 422), answer
        elif not body:
            assert answer[::2] == (200, b"")
            continue
        else:
            assert answer.status == 200
        assert answer.error["code"] in ("E101", "E102"), answer
        assert answer.error["hint"], answer


def test_a_body_too_large_is_refused_before_it_is_sent(caller: Caller) -> None:
    """The answer comes on the head alone."""
    with caller.connect() as sock:
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: poise\r\nAuthorization: {caller.good['Authorization']}\r\n"
        sock.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {100 * MIB}\r\n\r\n".encode())
        sock.settimeout(5)
        answer = read_answer(sock, "POST")
    assert (answer.status, answer.error["code"]) == (413, "E140")
    assert answer.error["hint"]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/nodes/n/drain"])
def test_a_body_that_turns_out_too_large_is_cut_off(caller: Caller, path: str) -> None:
    """Chunked, so that nobody knows before; what goes beyond is thrown away, not kept."""
    before = resident(caller.living.pid("control"))
    answer = _send_chunks(caller, path, "application/json")
    assert (answer.status, answer.error["code"]) == (413, "E140"), answer
    assert resident(caller.living.pid("control")) - before < 30 * MIB


def test_a_line_too_long_is_cut_off(caller: Caller) -> None:
    before = resident(caller.living.pid("control"))
    answer = _send_chunks(caller, "/v1/jobs", "application/x-ndjson")
    assert answer.status == 200
    assert answer.error["code"] == "E140"
    assert resident(caller.living.pid("control")) - before < 30 * MIB


def _send_chunks(caller: Caller, path: str, kind: str) -> Answer:
    """100 MiB without an end."""
    with caller.connect() as sock:
        head = f"POST {path} HTTP/1.1\r\nHost: poise\r\nAuthorization: {caller.good['Authorization']}\r\n"
        sock.sendall(f"{head}Content-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(100):
            sock.sendall(b"100000\r\n" + b"x" * MIB + b"\r\n")
        return read_answer(sock, "POST")


def test_bad_lines_between_good_ones_are_answered_in_their_place(caller: Caller) -> None:
    lines = [
        b'{"spec": {"run": ["true"], "name": "line-0"}}',
        b"{",
        b'{"spec": {"run": []}}',
        b'{"spec": {"run": ["true"], "resources": {"cpu": -1}}}',
        b'{"spec": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"spec": {"run": "\xff"}}',
        b'{"spec": {"run": ["true"], "resources": {"gpu": 999}}}',
        b"",
        b'{"spec": {"run": ["true"], "name": "line-0"}}',
        b'{"spec": {"run": ["true"], "name": "line-8"}}',
    ]
    answer = caller.call("POST", "/v1/jobs", b"\n".join(lines), Content_Type="application/x-ndjson")
    assert answer.status == 200
    found = [json.loads(line) for line in answer.body.splitlines()]
    codes = [answered["error"]["code"] if "error" in answered else "" for answered in found]
    assert codes == ["", "E101", "E104", "E103", "E101", "E101", "E110", "E107", ""]
    client = caller.living.client()
    assert client.job(found[0]["job"]).name == "line-0"
    assert client.wait(found[8]["job"]).name == "line-8"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/jobs/../../etc/passwd", 404),
        ("GET", "/v1/jobs/%00", 404),
        ("GET", "/v1/jobs/%FF", 404),
        ("GET", "/v1/jobs/no-such-job", 404),
        ("GET", "/v1/jobs/" + "x" * 2000, 404),
        ("DELETE", "/v1/jobs", 405),
        ("PUT", "/v1/jobs/undisturbed", 405),
        ("GET", "/v1/jobs?all=perhaps", 422),
        ("GET", "/v1/jobs/undisturbed?wait=soon", 422),
        ("GET", "/v1/jobs/undisturbed?wait=nan", 200),
        ("GET", "/v1/jobs/undisturbed?wait=-1", 200),
        ("GET", "/v1/events?after=x", 422),
        ("GET", f"/v1/events?after={10**30}", 422),
        ("GET", "/v1/events?after=9223372036854775807", 422),
        ("POST", "/v1/nodes/nowhere/drain", 404),
        ("POST", "/v1/jobs/no-such-job/cancel", 404),
        ("GET", "/v1/channel", 404),
    ],
)
def test_unknown_routes_and_values(caller: Caller, method: str, path: str, status: int) -> None:
    answer = caller.call(method, path, b"{}" if "drain" in path else None)
    assert answer.status == status, answer
    if status >= 400:
        assert answer.error["code"] in ("E102", "E120")
        assert answer.error["hint"]


@pytest.mark.parametrize("given", ["²", "-5", "1" * 19, "9" * 400, "x", ""])
def test_a_last_event_that_is_none(caller: Caller, given: str) -> None:
    answer = caller.call("GET", "/v1/events?follow=false", Last_Event_ID=given)
    assert answer.status == 200


def test_words_that_are_too_many_for_a_flag(caller: Caller) -> None:
    done = caller.living.poise("submit", "--json", "--", "true", "x" * 100_000, "y" * 100_000)
    assert (done.code, done.error["code"]) == (1, "E103")


def test_a_folder_that_is_gone_is_told(caller: Caller) -> None:
    gone = caller.living.work / "gone"
    gone.mkdir()
    job = caller.submit(ECHO | {"folder": str(gone), "resources": {"cpu": 0.1}}).value["job"]
    report = caller.living.client().wait(job, 30)
    gone.rmdir()
    assert report.status == "done"
    job = caller.submit(ECHO | {"folder": str(gone), "resources": {"cpu": 0.1}, "retry": {"limit": 0}}).value["job"]
    report = caller.living.client().wait(job, 30)
    assert (report.status, report.exit_code) == ("failed", 125) or report.exit_code in (126, 127)
    assert "gone" in report.tasks[0].note
