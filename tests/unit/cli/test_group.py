"""Words that are no commands of ours."""

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
