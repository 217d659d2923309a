"""Words that are no commands of ours."""

import json
import shlex
from unittest.mock import Mock

import click
import pytest

from poise.cli.group import Commands, poise
from poise.cli.main import ALIASES, COMMANDS, GROUPS, main

VERBS = {
    "stop j1": "cancel j1",
    "kill j1 j2": "cancel j1 j2",
    "scancel 7": "cancel 7",
    "stop": "cancel JOB",
    "stop $(rm)": "cancel JOB",
    "delete -f j1": "cancel JOB",
    "remove j1": "rm",
    "run2": "run",
    "delete job": "cancel job",
    "squeue": "ls",
    "uncordon gpu-7": "drain NODE --undo",
    "sbatch job.sh": "submit",
    "srun hostname": "run",
    "sinfo": "nodes",
    "ps": "ls",
    "cp j1:out .": "get",
    "describe j1": "show",
    "svc": "services",
    "apply -f x.yaml": "submit",
    "shwo": "show",
    "cancle": "cancel",
    "unpause j1": "release",
    "shutdown": "--help",
    "destroy j1": "--help",
    "halt": "--help",
    "xyzzy": "--help",
}
"""What is typed, and what is suggested."""


FLAGS = {
    "--mem 2GiB": "--memory 2GiB",
    "--mem=500": "--memory 500MiB",
    "-m 8g": "--memory 8GiB",
    "-m8g": "--memory 8GiB",
    "--gpus 2": "--gpu 2",
    "--cpus 2": "--cpu 2",
    "--walltime 1h": "--time-limit 1h",
    "--walltime=01:30:00": "--time-limit 1h30m",
    "--timeout 1h": "--time-limit 1h",
    "--time-limit 2h --time 90": "--time-limit 90m",
    "--retry 3": "--retries 3",
    "-e A=B": "--env A=B",
    "-e 'A=two words'": "--env 'A=two words'",
    "--nodes 2": "--workers 2 --spread node",
    "--nproc-per-node 2": "--workers 2 --together node",
    "--nproc_per_node=2": "--workers 2 --together node",
    "--ntasks 4": "--workers 4",
    "--array 0-9": "--parts 10",
    "--dependency=afterany:j3": "--after-any j3",
    "--dependency afterok:3": "--after j3",
    "--job-name 'a job'": "--name a-job",
}
"""Flags of other programs, and those that are suggested."""


@pytest.mark.parametrize("typed", FLAGS)
def test_a_flag_of_another_program_suggests_ours_and_nothing_else(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "--json", *shlex.split(typed), "--", "true"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["hint"] == f"`{FLAGS[typed]}`"
    assert "mean" not in error["message"] and "ossible" not in error["message"]
    command = poise.get_command(click.Context(poise), "submit")
    assert command is not None
    command.make_context("submit", [*shlex.split(FLAGS[typed]), "--", "true"])  # it can be typed


def test_all_gpus_have_no_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--json", "--gpus", "all", "--", "true"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == "`--gpu N`: `poise nodes` lists the devices"


def suggested(typed: str) -> str:
    with pytest.raises(click.UsageError) as caught:
        poise.resolve_command(click.Context(poise), typed.split())
    return caught.value.message.rpartition("hint: ")[2].strip("`").removeprefix("poise ")


@pytest.mark.parametrize("typed", VERBS)
def test_another_tools_verb_suggests_ours(typed: str) -> None:
    assert suggested(typed) == VERBS[typed]


@pytest.mark.parametrize("word", ["stop", "end", "halt", "shutdown", "quit", "dow", "downn", "own", "donw", "do", "dn"])
def test_no_wrong_word_suggests_to_stop_everything(word: str) -> None:
    assert suggested(word) != "down"


@pytest.mark.parametrize("word", ["r", "rn", "rmm", "rum", "rml"])
def test_no_wrong_word_suggests_to_remove(word: str) -> None:
    assert suggested(word) != "rm"


def test_every_command_is_in_one_group_or_is_another_name() -> None:
    listed = [name for names in (*GROUPS.values(), ALIASES) for name in names]
    assert sorted(listed) == sorted(COMMANDS)
    assert len(next(iter(GROUPS.values()))) == 10, "as many as a beginner reads"


def test_help_lists_the_first_steps_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line.removesuffix(":") for line in lines if line.endswith(":")]
    assert titles == [*GROUPS, "Other names"]
    begin = lines.index("First steps:")
    assert [line.split()[0] for line in lines[begin + 1 : begin + 11]] == list(GROUPS["First steps"])
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    "flags", [("--node", "n1", "--unblock"), ("--unblock", "--all"), ("--node", "n1", "-o", "wide")]
)
def test_explain_answers_one_question(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "j1", *flags]) == 1
    assert "exclude each other" in capsys.readouterr().err


def test_every_suggestion_is_a_command() -> None:
    commands = Commands()
    for typed in VERBS:
        name = suggested(typed).split()[0]
        assert name == "--help" or name in commands.list_commands(click.Context(commands))


@pytest.mark.parametrize("flags", [("--every", "1h"), ("--cron", "0 3 * * *")])
def test_what_is_waited_for_runs_once(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *flags, "--", "true"]) == 125
    assert "`poise submit`, which makes schedules" in capsys.readouterr().err
    assert main(["rm"]) == main(["rm", "j1", "--all"]) == main(["rm", "j1", "--older-than", "7d"]) == 1


def test_uninstall_is_no_command_and_names_the_steps() -> None:
    assert "pip uninstall poise-scheduler" in suggested("uninstall")


def test_ctrl_c_during_imports_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_given: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("poise.cli.main._run", interrupted)
    monkeypatch.setattr("poise.cli.main.gc", Mock())
    assert main() == 130


@pytest.mark.parametrize("command", ["report", "usage", "usage --budgets"])
def test_an_empty_tenant_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--tenant "$TEAM"` without `TEAM` told of all tenants."""
    assert main([*command.split(), "--tenant", "", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["field"]) == ("E107", "--tenant")


@pytest.mark.parametrize(
    "typed",
    ["cancel --status running --name", "rm --status done --name", "rm --all --user", "cancel --user", "ls --name",
     "logs j1 --task", "decisions --node", "token add --tenant a --role viewer --account"],
)  # fmt: skip
def test_an_empty_value_selects_nothing(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`poise rm --status done --name "$RUN"` without `RUN` removed all jobs that were done."""
    assert main([*typed.split(), ""]) == 1
    assert f"invalid value for '{typed.split()[-1]}': it is empty" in capsys.readouterr().err
