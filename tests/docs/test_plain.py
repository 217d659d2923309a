"""docs/plain.py: each rule finds a sentence that breaks it, and leaves a plain one alone."""

import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "docs"))
plain = import_module("plain")


def rules(sentence: str) -> list[str]:
    return [found.rule for found in plain.check("here", sentence)]


@pytest.mark.parametrize(
    "sentence",
    [
        "What works says row by row how far.",
        "Whoever connects checks the address.",
        "Of all chance.",
        "Running work goes on.",
        "Stop following them after so long.",
        "The agent is told the order.",
        "It is started anew.",
        "A failed call is tried again.",
        " ".join(["word"] * (plain.LONGEST + 1)) + ".",
    ],
)
def test_a_sentence_that_breaks_a_rule_is_found(sentence: str) -> None:
    assert len(rules(sentence)) >= 1


@pytest.mark.parametrize(
    "sentence",
    [
        "See the capability table for the exact status.",
        "What does my job wait for?",
        "What-if scenarios need no control plane.",
        "It waits as long as the node is closed, so long as nobody opens it.",
        "The two versions can be told apart.",
        " ".join(["word"] * plain.LONGEST) + ".",
    ],
)
def test_a_plain_sentence_is_not(sentence: str) -> None:
    assert rules(sentence) == []


def test_prose_is_paragraphs_items_and_cells_without_code_and_headings() -> None:
    code = "```sh\nwhat goes on\n```\n"
    text = f"# What it is\n\nOne\ntwo.\n\n{code}* An item\n  of two lines\n| a | b \\| c |\n1.5 times.\n"
    assert list(plain.prose(text)) == [
        (3, "One two."),
        (9, "An item of two lines"),
        (11, "a"),
        (11, "b \\| c"),
        (12, "1.5 times."),
    ]


def test_code_counts_as_a_word_and_a_link_as_its_text() -> None:
    assert plain.sentences("Run `a b. c`. See [the *guide*](x.md).") == ["Run `a_b·c`.", "See the guide."]


def test_help_begins_with_a_verb() -> None:
    @click.command(help="Poise at a glance.")
    @click.option("--seed", help="of all chance")
    def command() -> None: ...

    assert [found.rule for found in plain.of_command(command, "poise x")] == [
        "begin with a verb (`VERBS`)",
        "begin with a capital",
    ]
    assert [found.rule for found in plain.of_summary("poise x", "Jobs.")] == [
        "begin with a verb (`VERBS`)",
        "no final period",
    ]


def test_messages_and_hints_of_errors_are_read() -> None:
    places = [place for place, _ in plain.texts_of_errors('raise InputError(f"{name} goes on", hint="try again")\n')]
    assert places == [1, 1]
