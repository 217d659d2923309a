"""Checks that pages, help and errors are in plain English, as far as a program can tell.

    python docs/plain.py          every finding as `place: rule: sentence`; ends with 1 if there is any
    python docs/plain.py PATH …   only of these pages

It reads the prose of Markdown pages (not code, not generated pages, which come from the code), the help of every
command and option, the descriptions of the fields of files, the reasons why work waits, and the messages and hints of
errors. A rule is here only if nearly all of its findings are worth a better sentence.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import click

from poise import errors
from poise.cli.group import poise
from poise.cli.main import COMMANDS
from poise.drivers.schemas import FILES, schema_of
from poise.model.decisions import REASONS

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
GENERATED = "<!-- Made by docs/generate.py"
FOREIGN = ("README.zh-CN.md",)
LONGEST = 30
"""Words in a sentence. The aim is 25; enumerations may take a few more."""

WORDS = {
    r"so many": "the number, or `N`",
    r"so long(?! as)": "the duration",
    r"anew": "again",
    r"as it were": "nothing",
    r"that which": "the noun",
    r"who(?:m|so)?ever": "the actor: a client, a user, any process",
    r"(?:is|are|was|were|be|been|being) told(?! apart)": "gets, sees, is reported",
    r"(?:go|goes|went|gone|going) on(?! (?:a|an|the)\b)": "continue, resume, keep running",
    r"(?:try|tries|tried|trying) again": "retry",
    r"(?:of|from|by|to|for|in) whom": "a sentence of its own",
    r"simply": "nothing",
}
"""Words, and what to write in their place."""

HEADLESS = re.compile(r"(?:What(?!-)|Who|Whoever|Whatever|Whichever|That which|Of)\b(?!.*\?$)")
"""A sentence without a subject that a reader can name. A question is none."""

VERBS = (
    "Add Answer Ask Attach Break Build Cancel Capture Change Check Close Compare Complete Copy Create Decide Delete "
    "Explain Export Find Follow Forecast Forget Generate Hold Import Join Leave Let List Make Measure Move Open "
    "Print Promote Release Remove Repeat Replay Report Reserve Restart Restore Resume Revoke Run Send Serve Set Share "
    "Show Sign Simulate Start Stop Submit Test Train Try Update Upgrade Wait Watch Write"
)
"""What the help of a command begins with."""


ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.PoiseError)}


class Finding(NamedTuple):
    place: str
    rule: str
    sentence: str


def main() -> int:
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    found = [*of_pages(pages)] if pages else [*of_pages(every_page()), *of_help(), *of_fields(), *of_errors()]
    for place, rule, sentence in found:
        print(f"{place}: {rule}: {sentence}")
    if found:
        print(f"{len(found)} sentences are not plain English; docs/plain.py has the rules", file=sys.stderr)
    return 1 if found else 0


def check(place: str, sentence: str) -> Iterator[Finding]:
    """Whatever the rules find in one sentence."""
    if HEADLESS.match(sentence):
        yield Finding(place, "begin with the subject", sentence)
    for word, better in WORDS.items():
        if found := re.search(rf"\b{word}\b", sentence, re.IGNORECASE):
            yield Finding(place, f"write {better} for `{found[0]}`", sentence)
    if len(sentence.split()) > LONGEST:
        yield Finding(place, f"split: {len(sentence.split())} words", sentence)


# --- pages -----------------------------------------------------------------------------------------------------------


def every_page() -> list[Path]:
    pages = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    return [page for page in pages if page.name not in FOREIGN]


def of_pages(pages: list[Path]) -> Iterator[Finding]:
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if not text.startswith(GENERATED):
            for line, block in prose(text):
                for sentence in sentences(block):
                    yield from check(f"{page.relative_to(ROOT)}:{line}", sentence)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, items of lists and cells of tables with their lines: no code, no headings."""
    text = re.sub(
        r"^```.*?^```|<!--.*?-->", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE
    )
    start, lines = 1, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        begins = not line.strip() or re.match(r"\s*(?:[*>-]|\d+\.) |[#|]|    ", line)
        if begins and lines:
            yield start, " ".join(lines)
            lines = []
        if line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line.strip("|")):
                yield number, cell.strip()
        elif line.strip() and not line.startswith(("#", "    ")):
            start = start if lines else number
            lines.append(re.sub(r"^\s*(?:[*>-]|\d+\.) ", "", line).strip())


def sentences(text: str) -> list[str]:
    """Of a paragraph: code in it counts as one word, a link as its text."""
    text = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "_").replace(".", "·"), text)
    text = re.sub(r"(?<=^)\[([^\]]*)\]\([^)]*\)", r"`\1`", text)  # a link first in an item is a title
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(?<![\w`])[*_]{1,2}|[*_]{1,2}(?![\w`])", "", text)
    return [
        one.strip() for one in re.split(r"(?<=[.!?;])[\")]*\s+|(?<=:)\s+(?=[A-Z])|(?<=\.)\*+\s+", text) if one.strip()
    ]


# --- help ------------------------------------------------------------------------------------------------------------


def of_help() -> Iterator[Finding]:
    root = click.Context(poise, info_name="poise")
    for name, (_, text) in COMMANDS.items():
        yield from of_summary(f"poise {name}", text)
        yield from of_command(cast(click.Command, poise.get_command(root, name)), f"poise {name}")


def of_summary(place: str, text: str) -> Iterator[Finding]:
    """The one line of a command: begins with a verb, and has no final period."""
    if not begins_with_a_verb(text):
        yield Finding(place, "begin with a verb (`VERBS`)", text)
    if text.endswith("."):
        yield Finding(place, "no final period", text)
    yield from check(place, text)


def begins_with_a_verb(text: str) -> bool:
    return re.split(r"\W", text, maxsplit=1)[0] in VERBS.split()


def of_command(command: click.Command, place: str) -> Iterator[Finding]:
    text = " ".join((command.help or "").split())
    if text and not begins_with_a_verb(text):
        yield Finding(place, "begin with a verb (`VERBS`)", text)
    for sentence in sentences(text):
        yield from check(place, sentence)
    for option in command.params:
        if isinstance(option, click.Option) and option.help:
            for sentence in sentences(" ".join(option.help.split())):
                yield from check(f"{place} {option.opts[-1]}", sentence)
            if not option.help[0].isupper() and not re.match(r"[`\d]|fenced|urgent", option.help):
                yield Finding(f"{place} {option.opts[-1]}", "begin with a capital", option.help)
    if isinstance(command, click.Group):
        for name, own in command.commands.items():
            yield from of_command(own, f"{place} {name}")


# --- fields of files -------------------------------------------------------------------------------------------------


def of_fields() -> Iterator[Finding]:
    for kind in FILES:
        for place, text in descriptions(schema_of(kind), kind):
            for sentence in sentences(text):
                yield from check(place, sentence)


def descriptions(schema: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(schema, dict):
        if isinstance(text := schema.get("description"), str):
            yield place, " ".join(text.split())
        for name, value in schema.items():
            yield from descriptions(value, f"{place} {name}" if name not in ("properties", "$defs") else place)
    elif isinstance(schema, list):
        for value in schema:
            yield from descriptions(value, place)


# --- errors ----------------------------------------------------------------------------------------------------------


def of_errors() -> Iterator[Finding]:
    """The meanings of codes and of reasons, and the messages and hints in the code that raises errors."""
    for code, text in {**errors.CODES, **REASONS}.items():
        yield from check(code, capitalized(text))
    for path in sorted(SOURCES.rglob("*.py")):
        for line, text in texts_of_errors(path.read_text(encoding="utf-8")):
            for sentence in sentences(text):
                yield from check(f"{path.relative_to(ROOT)}:{line}", capitalized(sentence))


def texts_of_errors(code: str) -> Iterator[tuple[int, str]]:
    """What is given to the exceptions of `errors` as a message or a hint, with its line."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in ERRORS:
            for text in [*node.args[:1], *(word.value for word in node.keywords if word.arg == "hint")]:
                if found := literal(text):
                    yield node.lineno, found


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def literal(node: ast.AST) -> str:
    """The text of a string; what is filled in counts as one word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


if __name__ == "__main__":
    sys.exit(main())
