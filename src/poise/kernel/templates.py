"""Templates of log lines: what stays the same of lines that differ in numbers, names and addresses.

>>> templates = Templates()
>>> templates.take("worker 3 lost 10.0.0.7:22 after 1.5 s").text
'worker <*> lost <*> after <*> s'
>>> templates.take("worker 12 lost 10.0.0.9:22 after 20 s").count
2

The method is Drain (He et al., ICWS 2017): lines of one length and one first word are compared word by word; those that
agree in most of them are of one template, and the words in which they differ become `<*>`.
"""

import re

import msgspec

ANY = "<*>"

ALIKE = 0.6
"""The share of words in which a line agrees with its template."""

MOST = 1_000
"""Templates that are kept; the rarest of a group makes room."""

MOST_WORDS, MOST_LINE = 60, 1_000
"""Words of a line, and characters of it, that are read."""

_MASKED = r"""^[\[(<'"]*(?:
        [+-]?(?:\d[\d.,:_/-]*)(?:[a-zA-Z%]{0,3})?      # numbers, times, addresses, sizes
        | (?:0x)?[0-9a-fA-F]{6,}                        # hashes and pointers
        | (?=\S*\d)[\w.:/@\[\]#-]{3,}                   # names, paths and ids with a digit
    )[\])>'",;:.]*$"""
"""Compiled when it is first used: that takes 20 ms, which a start need not wait for."""


class Template(msgspec.Struct):
    """The words of one, how many lines it has, and the first of them."""

    words: list[str]
    first: str
    count: int = 0

    @property
    def text(self) -> str:
        return " ".join(self.words)


class Templates:
    """Templates of the lines of one source. The same lines in the same order give the same templates."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, str], list[Template]] = {}
        self._kept = 0

    def take(self, line: str) -> Template:
        """The template of a line; its `count` is 1 if the template is new."""
        words = [ANY if re.match(_MASKED, word, re.VERBOSE) else word for word in line[:MOST_LINE].split()[:MOST_WORDS]]
        group = self._groups.setdefault((len(words), words[0] if words else ""), [])
        best = max(group, key=lambda template: _alike(template.words, words), default=None)
        if best is None or _alike(best.words, words) < ALIKE:
            best = Template(words, line[:MOST_LINE])
            if self._kept >= MOST and group:
                group.remove(min(group, key=lambda template: template.count))
                self._kept -= 1
            if self._kept < MOST:
                group.append(best)
                self._kept += 1
        else:
            best.words = [old if old == new else ANY for old, new in zip(best.words, words, strict=True)]
        best.count += 1
        return best

    def all(self) -> list[Template]:
        """All of them, the most frequent first."""
        found = [template for group in self._groups.values() for template in group]
        return sorted(found, key=lambda template: (-template.count, template.text))


def _alike(one: list[str], other: list[str]) -> float:
    return sum(a == b for a, b in zip(one, other, strict=True)) / len(one) if one else 1.0
