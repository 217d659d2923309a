"""What is offered when Tab is pressed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from poise.cli import complete
from poise.cli.complete import FLAGS, offered
from poise.cli.completion import SCRIPTS
from poise.cli.main import COMMANDS, COMPLETE, main

TREE = json.loads(FLAGS.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A control plane that knows a few names, and a gateway with two services."""
    known = {"job": ["train", "train-2", "j1"], "node": ["n1"], "tenant": ["ann"]}

    def answer(kind: str, typed: str) -> list[str]:
        return [name for name in known[kind] if name.startswith(typed)]

    monkeypatch.setattr(complete, "live_names", answer)
    services = tmp_path / "services"
    services.mkdir()
    for name in ("twice.0a1b2c3d.sock", "twice.0a1b2c3d.json", "digits.v2.0a1b2c3d.sock", "0a1b2c3d.sock"):
        (services / name).touch()
    monkeypatch.setenv("POISE_HOME", str(tmp_path))


def offers(*words: str) -> list[str]:
    return [offer.partition("\t")[0] for offer in offered(TREE, list(words))]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sho"], ["show"]),
        (["show", "tr"], ["train", "train-2"]),
        (["show", "train", ""], []),
        (["wait", "j1", "tr"], ["train", "train-2"]),
        (["why-not", "train", ""], ["n1"]),
        (["explain", "train", "--node", ""], ["n1"]),
        (["drain", "--undo", ""], ["n1"]),
        (["services", ""], ["digits.v2", "twice"]),
        (["services", "twice", "d"], ["digits.v2"]),
        (["quota", "a"], ["ann"]),
        (["quota", "--cpu", "4", "a"], ["ann"]),
        (["quota", "--cpu", "a"], []),
        (["ls", "-o", "n"], ["name"]),
        (["ls", "--output=w"], ["--output=wide"]),
        (["ls", "--output", "=", "w"], ["wide"]),
        (["ls", "--output", "="], ["table", "wide", "json", "name"]),
        (["ls", "--a"], ["--all", "--at"]),
        (["ls", "--all", "--al"], []),
        (["run", "--after", "j1", "--af"], ["--after", "--after-any", "--after-failure"]),
        (["run", "--after", "tr"], ["train", "train-2"]),
        (["run", "--priority", ""], ["urgent", "high", "medium", "low"]),
        (["run", ""], [":commands"]),
        (["run", "python", "--"], [":files"]),
        (["run", "--", ""], [":commands"]),
        (["run", "--", "python", ""], [":files"]),
        (["submit", ""], [":files"]),
        (["submit", "--", ""], [":commands"]),
        (["submit", "--name", "--", ""], [":commands"]),
        (["up", "--policy", "st"], ["static", ":files"]),
        (["policy", "set", "st"], ["static", ":files"]),
        (["shadow", "start", "st"], ["static", ":files"]),
        (["up", "--fleet", ""], [":files"]),
        (["completion", "z"], ["zsh"]),
        (["no-such-command", ""], []),
    ],
    ids=" ".join,
)
def test_what_is_offered(words: list[str], expected: list[str]) -> None:
    assert offers(*words) == expected


def test_every_command_is_offered_with_what_it_does() -> None:
    assert list(offered(TREE, [""])) == [f"{name}\t{text}" for name, (_, text) in COMMANDS.items()]


@pytest.mark.parametrize("words", [[], ["poise"], ["poise", ""], ["poise", "show", "\udcff\n"], ["poise", "=", "="]])
def test_whatever_was_typed_is_no_error(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main([COMPLETE, *words]) == 0
    assert capsys.readouterr().err == ""


def test_every_shell_asks_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for shell, script in SCRIPTS.items():
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out == script
        assert f" {COMPLETE} " in script


def test_where_nothing_runs_there_are_no_names_and_nothing_is_started(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path_factory.mktemp("home") / "none"
    monkeypatch.undo()
    monkeypatch.setenv("POISE_HOME", str(home))
    ask: Callable[[str, str], list[str]] = complete.live_names
    assert ask("job", "t") == []
    assert not home.exists()
