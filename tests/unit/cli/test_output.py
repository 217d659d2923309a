"""One mechanism prints what commands list and show: tables, wide ones, JSON, names, and going on."""

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from poise.cli import output
from poise.cli.group import poise
from poise.cli.main import COMMANDS, _unexpected, main
from poise.cli.output import Column, Shown
from poise.cli.render import ago, show_error
from poise.errors import InputError


def shown(*rows: tuple[str, str, str], over: bool = False) -> Shown:
    names, statuses, took = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [
        Column("NAME", names),
        Column("STATUS", statuses, right=True),
        Column("TOOK", took, moving=True),
        Column("NOTE", [""] * len(names), bare=True),
        Column("MORE", took, only="wide"),
    ]
    return Shown({"rows": len(rows)}, names, columns, head=["head"], notes=["noted"], nothing="nothing", over=over)


@pytest.mark.parametrize(
    ("form", "out", "err"),
    [
        ("table", "head\nNAME  STATUS  TOOK\na         up  1 s\nbb      down  20 s\n", "noted\n"),
        ("wide", "head\nNAME  STATUS  TOOK  MORE\na         up  1 s   1 s\nbb      down  20 s  20 s\n", "noted\n"),
        ("name", "a\nbb\n", ""),
        ("json", '{\n  "rows": 2\n}\n', ""),
    ],
)
def test_the_four_forms(capsys: pytest.CaptureFixture[str], form: str, out: str, err: str) -> None:
    output.show(lambda: shown(("a", "up", "1 s"), ("bb", "down", "20 s")), form, False)
    assert capsys.readouterr() == (out, err)


HOSTILE = "\x1b]0;title\a\x1b[2J\r\x9b1m\u202e"


def test_what_others_have_named_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    red = click.style("failed", fg="red")
    columns = [Column("NAME", [f"a{HOSTILE}b"]), Column("STATUS", [red])]
    given = Shown([HOSTILE], ["a"], columns, head=[f"head{HOSTILE}"], notes=[f"note{HOSTILE}"])
    for form in ("table", "wide"):
        output.show(lambda: given, form, False)
        printed = "".join(capsys.readouterr())
        assert not set("\x1b\a\r\x9b\u202e") & set(printed.replace(red, "")), repr(printed)
    output.show(lambda: given, "json", False)
    assert json.loads(capsys.readouterr().out) == [HOSTILE]


def test_an_empty_table_says_so_and_prints_no_head(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(lambda: Shown([], [], [Column("NAME", [])], nothing="nothing"), "table", False)
    assert capsys.readouterr() == ("", "nothing\n")


def test_watching_appends_rows_that_say_something_new(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "EVERY", 0)
    frames = iter(
        [
            shown(("a", "up", "1 s")),
            shown(("a", "up", "2 s")),
            shown(("a", "up", "3 s"), ("bb", "up", "1 s")),
            shown(("a", "lost", "4 s"), ("bb", "up", "1 s"), over=True),
        ]
    )
    output.show(lambda: next(frames), "table", True)
    assert capsys.readouterr().out.splitlines() == [
        "head",
        "NAME  STATUS  TOOK",
        "a         up  1 s",
        "bb        up  1 s",
        "a       lost  4 s",
    ]


@pytest.mark.parametrize("form", ["json", "name"])
def test_what_is_one_answer_does_not_go_on(form: str) -> None:
    with pytest.raises(click.UsageError, match="poise events --follow"):
        output.show(shown, form, True)


@pytest.mark.parametrize("given", ["--json", "-o json", "-ojson", "--output=json", "--output json"])
def test_errors_are_json_however_it_was_asked_for(capsys: pytest.CaptureFixture[str], given: str) -> None:
    assert main(["ls", *given.split(), "--no-such-flag"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["code"] == "E102"
    assert err == ""


def test_two_forms_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--json", "-o", "wide"]) == 1
    assert "exclude each other" in json.loads(capsys.readouterr().out)["error"]["message"]


def every_command(check: Callable[[str, click.Command], bool]) -> list[str]:
    context = click.Context(poise)
    found = ((name, poise.get_command(context, name)) for name in COMMANDS)
    return [name for name, command in found if command is not None and not check(name, command)]


def test_every_command_prints_json() -> None:
    def has(name: str, command: click.Command) -> bool:
        if isinstance(command, click.Group):
            return all(has(each, of) for each, of in command.commands.items())
        return any("--json" in param.opts for param in command.params)

    assert every_command(has) == []


def test_a_page_takes_the_place_of_no_device_and_no_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    output.write_page(pipe, "<p>", "--report")
    assert os.read(reader, 10) == b"<p>"
    assert pipe.is_fifo()
    os.close(reader)


def test_a_page_is_written_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    output.write_page(tmp_path / "link.html", "<p>", "--report")
    assert (tmp_path / "page.html").read_text() == "<p>"
    assert (tmp_path / "link.html").is_symlink()


@pytest.mark.parametrize(("name", "why"), [(".", "a folder"), ("", "a folder"), ("no/x.html", "no such folder")])
def test_a_page_that_cannot_be_written_is_told_before_anything_else(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        output.check_page(Path(name), "--report")
    assert caught.value.record.field == "--report"
    assert caught.value.record.hint.startswith("`--report FILE`")


def test_a_moment_that_is_ahead_by_the_clock_of_this_machine_is_now() -> None:
    assert ago(time.time() + 3600) == "0 ms"


def test_a_current_folder_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["submit", "--", "true"]) == 1
    assert "error[E102]: the current folder no longer exists" in capsys.readouterr().err


def test_a_socket_that_is_gone_is_no_missing_folder(tmp_path: Path) -> None:
    """The error of such a connection has no file name either."""
    with socket.socket(socket.AF_UNIX) as connection, pytest.raises(FileNotFoundError) as caught:
        connection.connect(str(tmp_path / "none"))
    assert "internal error: FileNotFoundError" in str(_unexpected(caught.value))


@pytest.mark.parametrize(
    "words", [["show"], ["run", "--label"], ["shadow", "stop"], ["quota", "set"], [], ["events", "--after"], ["serve"]]
)
def test_a_very_long_name_is_not_repeated_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    assert main([*words, "a" * 5000]) > 0
    said = capsys.readouterr().err
    assert len(said) < 600, said


def test_a_long_path_and_an_address_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    path, address = "/x" * 1000, ",".join([f"head:7718#{'a' * 64}"] * 5)
    show_error(InputError("no", field=path, hint=f"`export POISE_ADDRESS={address}`"), as_json=False)
    said = capsys.readouterr().err
    assert path in said and address in said
