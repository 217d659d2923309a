"""Rules of `.gitignore` and `.poiseignore`, which leave paths of a working tree out.

The syntax and the precedence are those of Git: the last matching rule decides, rules of a deeper folder come after
those of the folders above, and the contents of an ignored folder are not checked. Within a folder the rules of
`.poiseignore` come after those of `.gitignore`. As in Git, a line ends at a newline only, and `?` stands for a byte.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from poise.model.trees import IGNORED_BY

FILES = (".gitignore", IGNORED_BY)
"""Files with rules, in ascending precedence."""


class Rule(NamedTuple):
    """One line: `matches` is applied to the bytes of the path below the folder `base` (empty, or ends in a slash)."""

    text: str
    file: str
    base: str
    matches: re.Pattern[str]
    includes: bool
    folders_only: bool

    def applies(self, path: str, *, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        return self.matches.fullmatch(_in_bytes(path), len(_in_bytes(self.base))) is not None


def rules_of(text: str, file: str, base: str) -> list[Rule]:
    """Return the rules in a file of the folder `base`, in order."""
    found = []
    for line in text.removeprefix("\ufeff").split("\n"):
        pattern = _in_bytes(_stripped(line))
        includes = pattern.startswith("!")
        pattern = pattern[includes:]
        if not pattern or line.startswith("#"):
            continue
        folders_only = pattern.endswith("/")
        matches = _compiled(pattern.rstrip("/") if folders_only else pattern)
        if matches is not None:
            found.append(Rule(line.strip(), file, base, matches, includes, folders_only))
    return found


def line_for(path: str) -> str:
    r"""Return the line that leaves out a path. `?` stands for each byte of a character that cannot be typed.

    >>> line_for("#a *.log"), line_for("a\nb")
    ('\\#a \\*.log', 'a?b')
    """
    line = "".join(
        f"\\{one}" if one in "\\*?[" else one if one.isprintable() else "?" * len(_in_bytes(one)) for one in path
    )
    line = f"\\{line}" if line.startswith(("#", "!")) else line
    return f"{line[:-1]}\\ " if line.endswith(" ") else line


def deciding(rules: Sequence[Rule], path: str, *, is_folder: bool) -> Rule | None:
    """Return the rule that decides about a path, or None."""
    for rule in reversed(rules):
        if rule.applies(path, is_folder=is_folder):
            return rule
    return None


def _in_bytes(text: str) -> str:
    """Return a text with a character for each of its bytes."""
    return text if text.isascii() else text.encode(errors="surrogateescape").decode("latin-1")


def _stripped(line: str) -> str:
    """Return the line without trailing spaces; keep one that is escaped."""
    line = line.removesuffix("\r")  # one only: `Icon\r\r` stands for the file `Icon\r` of a Mac
    stripped = line.rstrip(" ")
    escapes = len(stripped) - len(stripped.rstrip("\\"))
    return stripped + " " if escapes % 2 and len(line) > len(stripped) else stripped


def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern. A pattern with a slash is relative to its folder; any other matches at each depth."""
    anchored = "/" in pattern
    parts = _parts(pattern.removeprefix("/"))
    made = "" if anchored else "(?:.*/)?"
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part == "**":
            made += ".+" if is_last else "(?:.*/)?"
            continue
        one = _of_part(part)
        if one is None:
            return None
        made += one if is_last else one + "/"
    try:
        return re.compile(made, re.DOTALL)
    except re.error:
        return None


def _parts(pattern: str) -> list[str]:
    """Split at slashes, except for those in a character class."""
    parts, at, begun = [], 0, 0
    while at < len(pattern):
        if pattern[at] == "[" and (end := _class_end(pattern, at + 1)) >= 0:
            at = end
        elif pattern[at] == "\\":
            at += 1
        elif pattern[at] == "/":
            parts.append(pattern[begun:at])
            begun = at + 1
        at += 1
    return [*parts, pattern[begun:]]


def _of_part(part: str) -> str | None:
    """Return one part of a path as a regular expression; None if it cannot match."""
    made, at = "", 0
    while at < len(part):
        letter = part[at]
        at += 1
        if letter == "*":
            if not made.endswith("[^/]*"):
                made += "[^/]*"
        elif letter == "?":
            made += "[^/]"
        elif letter == "[":
            end = _class_end(part, at)
            if end < 0:
                return None
            made += _class(part[at:end])
            at = end + 1
        elif letter == "\\":
            if at == len(part):
                return None
            made += re.escape(part[at])
            at += 1
        else:
            made += re.escape(letter)
    return made


def _class_end(part: str, at: int) -> int:
    """Return where the character class that begins at `at` ends; -1 if it is not closed."""
    at += part[at : at + 1] in ("!", "^")
    at += part[at : at + 1] == "]"
    while at < len(part):
        if part[at] == "]":
            return at
        if part.startswith("[:", at) and (end := part.find(":]", at)) > 0:
            at = end + 2
        else:
            at += 2 if part[at] == "\\" else 1
    return -1


_NAMED = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "space": r"\s",
          "xdigit": "0-9a-fA-F", "punct": r"!-\/:-@\[-`{-~"}  # fmt: skip


def _class(text: str) -> str:
    """Return a character class that never matches a slash."""
    negated = text[:1] in ("!", "^")
    text = text[negated:]
    made, at = "", 0
    while at < len(text):
        if text.startswith("[:", at) and (end := text.find(":]", at)) > 0:
            made += _NAMED.get(text[at + 2 : end], "")
            at = end + 2
            continue
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
            made += re.escape(text[at])
        else:
            made += text[at] if text[at] == "-" and 0 < at < len(text) - 1 else re.escape(text[at])
        at += 1
    if not made:
        return "[^/]" if negated else "(?!)"
    return f"(?!/)[{'^' if negated else ''}{made}]"
