"""Templates of log lines: the constant words of lines that differ in numbers, names and addresses.

>>> templates = Templates()
>>> templates.take("worker 3 lost 10.0.0.7:22 after 1.5 s").text
'worker <*> lost <*> after <*> s'
>>> templates.take("worker 12 lost 10.0.0.9:22 after 20 s").count
2

The method is Drain (He et al., ICWS 2017): lines of one length and one first word are compared word by word. Lines that
agree in most words share a template, and the differing words become `<*>`.
"""

import re
from collections import OrderedDict

import msgspec

ANY = "<*>"

ALIKE = 0.7
"""Minimum share of words that a line must have in common with its template."""

MOST = 1_000
"""Maximum number of templates; the rarest of a group is removed first."""

MOST_WORDS, MOST_LINE = 60, 1_000
"""Maximum words of a line, and characters of it, that are read."""

SETTLED = 300
"""Number of consecutive lines without a new template after which a new one is unusual."""

MOST_SOURCES, MOST_OF_ONE = 64, 300
"""Maximum number of sources, the latest ones, and of templates per source."""

_MASKED = r"""^[\[(<'"]*(?:
        [+-]?(?:\d[\d.,:_/-]*)(?:[a-zA-Z%]{0,3})?      # numbers, times, addresses, sizes
        | (?:0x)?[0-9a-fA-F]{6,}                        # hashes and pointers
        | (?=\S*\d)[\w.:/@\[\]#-]{3,}                   # names, paths and ids with a digit
    )[\])>'",;:.]*$"""
"""Compiled on first use: that takes 20 ms, by which it would delay a start."""


class Template(msgspec.Struct):
    """The words of a template, its first line, and the number of its lines."""

    words: list[str]
    first: str
    count: int = 0

    @property
    def text(self) -> str:
        return " ".join(self.words)


class Templates:
    """Templates of the lines of one source. The same lines in the same order give the same templates."""

    def __init__(self, most: int = MOST) -> None:
        self._groups: dict[tuple[int, str], list[Template]] = {}
        self._kept, self._most = 0, most

    def take(self, line: str) -> Template:
        """Return the template of a line; its `count` is 1 if the template is new."""
        words = [_masked(word) for word in line[:MOST_LINE].split()[:MOST_WORDS]]
        group = self._groups.setdefault((len(words), words[0] if words else ""), [])
        best = max(group, key=lambda template: _alike(template.words, words), default=None)
        if best is None or _alike(best.words, words) < ALIKE:
            best = Template(words, line[:MOST_LINE])
            if self._kept >= self._most and group:
                group.remove(min(group, key=lambda template: template.count))
                self._kept -= 1
            if self._kept < self._most:
                group.append(best)
                self._kept += 1
        else:
            best.words = [old if old == new else ANY for old, new in zip(best.words, words, strict=True)]
        best.count += 1
        return best

    def all(self) -> list[Template]:
        """Return all templates, the most frequent first."""
        found = [template for group in self._groups.values() for template in group]
        return sorted(found, key=lambda template: (-template.count, template.text))


class Novelty:
    """Lines that are unusual for their source. A source is settled once `SETTLED` lines in a row had no new template;
    the next new one is unusual, and the source has to settle again. So only the first of many new lines is reported,
    and none of a source that never repeats itself.

    >>> novelty = Novelty()
    >>> any(novelty.take("train", f"step {number} loss 0.5") for number in range(1 + SETTLED))
    False
    >>> novelty.take("train", "CUDA error: an illegal memory access was encountered")
    'CUDA error: an illegal memory access was encountered'
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Templates, int]] = OrderedDict()

    def take(self, source: str, line: str) -> str:
        """Return the template of a line if it is unusual; else an empty text."""
        if source not in self._known:
            self._known[source] = Templates(MOST_OF_ONE), 0
        templates, same = self._known.pop(source)
        template = templates.take(line)
        is_new = template.count == 1
        self._known[source] = templates, 0 if is_new else same + 1
        if len(self._known) > MOST_SOURCES:
            self._known.popitem(last=False)
        return template.text if is_new and same >= SETTLED else ""


def _masked(word: str) -> str:
    """Return `<*>` for a number, an address or an id; in other words, mask the digits.

    >>> _masked("10.0.0.7:22"), _masked("rank=3,"), _masked("rank")
    ('<*>', 'rank=<*>,', 'rank')
    """
    return ANY if re.match(_MASKED, word, re.VERBOSE) else re.sub(r"\d+", ANY, word)


def _alike(one: list[str], other: list[str]) -> float:
    return sum(a == b for a, b in zip(one, other, strict=True)) / len(one) if one else 1.0
