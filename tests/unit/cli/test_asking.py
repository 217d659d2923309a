"""Flags say what a job file says."""

import json
from collections.abc import Iterable
from typing import Any

import click
import msgspec
import pytest

from poise.cli.asking import Asking, asked, asking, merged, note_units, told_as_flags
from poise.cli.main import main
from poise.errors import SpecError
from poise.model.job_fields import JobSpec, ResourcesSpec
from poise.model.spec import compile_spec
from poise.units import SECOND

IN_FILES_ONLY = {
    "kind": "a command is a job",
    "run": "is what the command line ends with",
    "folder": "is where one types",
    "tasks": "make a graph",
    "needs": "makes a graph",
    "split": "is a mapping; `--parts` cuts evenly",
    "merge": "is a second command",
    "artifacts": "are several commands",
    "work": "is a mapping",
    "phases": "is a mapping",
    "ops": "are told by the fleet file's author, not by who types",
    "calls": "come from Python",
    "serves": "comes from `poise serve`",
}


def flags_of(*given: str) -> dict[str, Any]:
    told: dict[str, Any] = {}

    @click.command()
    @asking
    def command(**flags: Any) -> None:
        told.update(asked(flags, {}))

    command.main(list(given), standalone_mode=False)
    return told


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ("--class resnet", "class", "resnet"),
        ("--grace 30s", "grace", "30s"),
        ("--hang 1m", "hang", "1m"),
        ("--time-limit 2h", "time-limit", "2h"),
        ("--parts 4", "parts", 4),
        ("--workers 2..8", "workers", "2..8"),
        ("--weight 2.5", "weight", 2.5),
        ("--backend cuda", "resources", {"backend": "cuda"}),
        ("--node a --node b", "resources", {"node": ["a", "b"]}),
        ("--label zone=eu,us --label spot!=yes", "resources", {"label": {"zone": ["eu", "us"], "spot": ["!yes"]}}),
        ("--no-preempt", "preemptible", False),
        ("--sync=/else/where", "sync", "/else/where"),
        ("--sync=", "sync", True),
        ("--sync=off", "sync", False),
        ("--sync=true", "sync", True),
        ("--lease exclusive", "lease", "exclusive"),
        ("--secret A --secret B=@token.txt", "secrets", {"A": None, "B": {"file": "token.txt"}}),
        ("--deadline 30m", "deadline", "30m"),
        ("--deadline 30m --if-late cancel", "deadline", {"by": "30m", "if-late": "cancel"}),
    ],
)
def test_a_flag_sets_its_field(given: str, field: str, value: object) -> None:
    assert flags_of(*given.split()) == {field: value}


def test_a_flag_whose_value_may_be_left_out_takes_no_other_word() -> None:
    told: list[tuple[Any, tuple[str, ...]]] = []

    @click.command(cls=Asking)
    @asking
    @click.argument("words", nargs=-1)
    def command(words: tuple[str, ...], **flags: Any) -> None:
        told.append((asked(flags, {}).get("sync"), words))

    for line in ("--sync job.yaml", "--sync=/d job.yaml", "--name --sync job.yaml", "-- job.yaml --sync", "x --sync y"):
        command.main(line.split(), standalone_mode=False)
    assert told == [
        (True, ("job.yaml",)),
        ("/d", ("job.yaml",)),
        (None, ("job.yaml",)),
        (None, ("job.yaml", "--sync")),
        (True, ("x", "y")),
    ]
    command.allow_interspersed_args = False
    command.main(["x", "--sync"], standalone_mode=False)
    assert told[-1] == (None, ("x", "--sync"))


def test_every_field_has_a_flag_or_a_reason() -> None:
    examples = (
        "--gpu 1 --gpu-memory 1GiB --gpu-share 0.5 --gpu-kind gpu --gpu-model T4 --backend cuda --precision fp16 "
        "--node a --exclude-node b --label c=d --spread zone --together rack "
        "--network 1Gbit --cpu 1 --memory 1GiB --priority low --begin 1h --flexible 1h --deadline 1h --expect 1m "
        "--after j1 --hold --after-any j2 --after-failure j3 "
        "--class c --parts 2 --workers 1 --checkpoint 1m --no-preempt --weight 1 --name n --retries 1 --grace 1s "
        "--backoff 1s "
        "--hang 1s --time-limit 1h --idle 30m --if-idle end --interactive --tty --output o "
        "--env A=1 --secret B --sweep a=1,2 --at-most 2 --lease exclusive "
        "--every 1h --cron * --time-zone UTC --overlap skip --sync=.. --requirements r.txt "
        "--notify command:x --notify-on end --project p --image i --allow-failed 1"
    )
    told = flags_of(*examples.split())
    set_here = {*told, *told["resources"]}
    assert told["idle"] == {"after": "30m", "then": "end"}

    def names(of: type) -> Iterable[str]:
        return (field.encode_name for field in msgspec.structs.fields(of))

    assert {*names(JobSpec), *names(ResourcesSpec)} - set_here == IN_FILES_ONLY.keys()


@pytest.mark.parametrize(
    ("file", "given", "made"),
    [
        ("30m", "--if-late cancel", {"by": "30m", "if-late": "cancel"}),
        ({"by": "30m", "if-late": "cancel"}, "--deadline 1h", {"by": "1h", "if-late": "cancel"}),
        ({"by": "30m", "if-late": "cancel"}, "--if-late run", {"by": "30m", "if-late": "run"}),
        ("30m", "--deadline 1h", {"by": "1h"}),
        (None, "--deadline 1h", "1h"),
    ],
)
def test_what_flags_say_of_a_deadline_stands_in_its_place_in_the_file(file: Any, given: str, made: object) -> None:
    assert merged({"run": "x", "deadline": file}, flags_of(*given.split()))["deadline"] == made
    assert merged({"run": "x", "deadline": "1h"}, flags_of("--cpu", "1"))["deadline"] == "1h"


def test_a_short_unit_of_memory_is_told_as_it_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    graph = {"tasks": {"a": {"resources": {"memory": "4G", "gpu_memory": "8GiB"}}, "b": {"resources": {"memory": 7}}}}
    note_units(graph)
    note_units({"run": "x", "resources": {"gpu_memory": "1.5 t"}})
    note_units({"run": "x", "resources": {"memory": "2Gb", "gpu_memory": "2gb"}})
    assert capsys.readouterr().err.splitlines() == [
        "poise: memory 4G is read as 4GiB",
        "poise: gpu_memory 1.5 t is read as 1.5TiB",
        "poise: memory 2Gb is read as 2GB",
    ]


@pytest.mark.parametrize("given", ["zone", "zone=", "=eu", "!=eu", "zone=eu,,us"])
def test_a_label_without_a_value_is_refused(given: str) -> None:
    with pytest.raises(SpecError, match="label"):
        flags_of("--label", given)


@pytest.mark.parametrize("given", ["a=", "a=1,,2", "a"])
def test_a_sweep_without_values_is_refused(given: str) -> None:
    with pytest.raises(SpecError):
        flags_of("--sweep", given)


@pytest.mark.parametrize(
    ("given", "where", "hint"),
    [
        ("--memory lots", "--memory", "--memory 8GiB"),
        ("--memory 4", "--memory", "--memory 4GiB"),
        ("--time-limit soon", "--time-limit", "--time-limit 2h"),
        ("--time-limit 5", "--time-limit", "--time-limit 5m"),
        ("--time-limit 00:01:00", "--time-limit", "--time-limit 1m"),
        ("--time-limit 1-02:30:00", "--time-limit", "--time-limit 1d2h30m"),
        ("--backoff soon", "--backoff", "--backoff 1s"),
        ("--at-most 2", "--at-most", "--parts 4"),
        ("--retries -1", "--retries", "--retries 3"),
        ("--deadline soon --if-late run", "--deadline", "--deadline 30m"),
        ("--deadline 1h --if-late panic", "--if-late", "--if-late cancel"),
        ("--if-late cancel", "--deadline", "--deadline 30m"),
    ],
)
def test_errors_about_flags_name_the_flag(given: str, where: str, hint: str) -> None:
    words = given.split()
    flags = dict.fromkeys(("memory", "retries", "backoff", "at_most", "parts", "deadline", "if_late", "time_limit"))
    flags |= {name[2:].replace("-", "_"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    with pytest.raises(SpecError) as caught, told_as_flags(flags):
        compile_spec({"run": "x"} | flags_of(*given.split()), wall=0.0)
    assert (caught.value.record.field, caught.value.record.hint) == (where, hint)


def test_a_hint_at_a_flag_without_a_value_can_be_typed() -> None:
    """What would follow `--sync` is the command, or a file."""
    with pytest.raises(SpecError) as caught, told_as_flags({"sync": "off", "requirements": "r.txt"}):
        compile_spec({"run": "x", "sync": False, "requirements": "r.txt"}, wall=0.0)
    assert (caught.value.record.field, caught.value.record.hint) == ("--requirements", "--sync")


def test_the_pause_between_retries_is_said_beside_their_number() -> None:
    asks = flags_of("--retries", "5", "--backoff", "2s")
    assert asks["retry"] == {"limit": 5, "backoff": "2s"}
    retry = compile_spec({"run": "x"} | asks, wall=0.0).units[0].retry
    assert (retry.limit, retry.backoff) == (5, 2 * SECOND)
    file = {"run": "x", "retry": {"limit": 2, "when": ["lost"]}}
    assert merged(file, flags_of("--backoff", "2s"))["retry"] == {"limit": 2, "when": ["lost"], "backoff": "2s"}


@pytest.mark.parametrize("value", ["0", "2h", 90])
def test_a_time_limit_of_zero_or_a_number_of_seconds_is_read(value: str | int) -> None:
    limit = compile_spec({"run": "x", "time-limit": value}, wall=0.0).units[0].time_limit
    assert limit == {"0": 0, "2h": 7200 * SECOND, 90: 90 * SECOND}[value]


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("--array 0-3", "`--parts 4`"),
        ("--array=0-99%5", "`--parts 100 --at-most 5`"),
        ("-n 4", "`--workers 4`"),
        ("-n4", "`--workers 4`"),
        ("-c 2", "`--cpu 2`"),
        ("--time 00:01:00", "`--time-limit 1m`"),
        ("--mem=8G", "`--memory 8GiB`"),
        ("--qos high", "`poise submit --help`"),
    ],
)
def test_an_option_of_slurm_suggests_ours(given: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", *given.split(), "--", "true"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"hint: {hint}"


@pytest.mark.parametrize("flag", ["--after", "--node", "--label", "--image", "--name"])
def test_an_empty_value_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--after "$LAST"` without `LAST` started the job at once, and `--image ""` ran it outside of a container."""
    for command in ("submit", "plan"):
        assert main([command, flag, "", "--json", "--", "true"]) == 1
        error = json.loads(capsys.readouterr().out)["error"]
        assert (error["message"], error["field"]) == ("the value is empty", flag)
