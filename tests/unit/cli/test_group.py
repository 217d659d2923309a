"""Words that are no commands of ours."""

import click
import pytest

from poise.cli.group import Commands, poise

VERBS = {
    "stop j1": "cancel j1",
    "kill j1 j2": "cancel j1 j2",
    "scancel 7": "cancel 7",
    "stop": "cancel JOB",
    "stop $(rm)": "cancel JOB",
    "rm -f j1": "cancel JOB",
    "delete job": "cancel job",
    "squeue": "ls",
    "sbatch job.sh": "submit",
    "srun hostname": "run",
    "sinfo": "nodes",
    "ps": "ls",
    "get pods": "ls",
    "describe j1": "show",
    "apply -f x.yaml": "submit",
    "shwo": "show",
    "cancle": "cancel",
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


def test_every_suggestion_is_a_command() -> None:
    commands = Commands()
    for typed in VERBS:
        name = suggested(typed).split()[0]
        assert name == "--help" or name in commands.list_commands(click.Context(commands))
