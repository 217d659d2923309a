"""What the `#SBATCH` lines of a script would be here. They are told, and never obeyed."""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence

from poise.units import duration_of_slurm

_LINE = re.compile(r"#SBATCH\s+(.*)")


def of_slurm(head: Iterable[str], said: Collection[str]) -> str:
    """A sentence with the directive that says the same, without what is `said` already; empty where there is no need of
    one.
    """
    told: list[str] = []
    lost: list[str] = []  # options to which nothing here corresponds
    lines = [match[1] for line in head if (match := _LINE.fullmatch(line.strip()))]
    for line in lines:
        words = line.split("#")[0].split()
        while words:
            name, _, value = words.pop(0).partition("=")
            if not name.startswith("--"):
                name, value = f"--{_SHORT.get(name[1:2], '')}", name[2:] or value
            if not value and words and not words[0].startswith("-"):
                value = words.pop(0)
            translate = _OF_SLURM.get(name[2:])
            try:
                told += translate(value).split(" ") if translate and value else []
                lost += [] if translate and value else [name]
            except ValueError:  # it is written as no option is, or says what has no counterpart
                lost.append(name)
    told = [one for one in dict.fromkeys(told) if one.partition("=")[0].replace("if-late", "deadline") not in said]
    if told:
        if any(one.startswith(("sweep=", "parts=", "workers=")) for one in told):
            told = [_for_each(one) for one in told]
        without = f"; without counterpart: {', '.join(dict.fromkeys(lost))}" if lost else ""
        return f"`#SBATCH` lines are not obeyed; the same here: `#POISE {' '.join(told)}`{without}"
    return "`#SBATCH` lines are not obeyed, and nothing here is the same" if lines and not said else ""


def flags_of_slurm(option: str, given: Sequence[str]) -> str:
    """The flags that say the same as an option of Slurm in a command line; empty where there are none."""
    at = next((number for number, word in enumerate(given) if word.startswith(option)), len(given))
    word, *after = given[at : at + 2] or [""]
    value = word.removeprefix(option).removeprefix("=") or "".join(after)
    translate = _OF_SLURM.get(_SHORT.get(option[1:], "") if len(option) == 2 else option[2:])
    try:
        told = translate(value).split(" ") if translate and value else []
    except ValueError:
        return ""
    parts = [one.partition("=") for one in told]
    return " ".join(f"--{name.replace('_', '-')} {text}" for name, _, text in parts)


def _for_each(directive: str) -> str:
    """Several tasks do not write to one file."""
    name, _, path = directive.partition("=")
    if name != "output" or "%r" in path:
        return directive
    stem, dot, ending = path.rpartition(".")
    return f"output={stem}-%r.{ending}" if dot and "/" not in ending else f"output={path}-%r"


def _dependency(text: str) -> str:
    """`afterok:1:2`; conditions of which any will do (`?`) have no counterpart."""
    told = []
    for one in text.split(","):
        how, *jobs = one.split(":")
        field = {"afterok": "after", "afterany": "after_any", "afternotok": "after_failure"}.get(how)
        if field is None or not all(_is_whole(job) for job in jobs):
            raise ValueError(text)
        told += [f"{field}=j{job}" for job in jobs]
    return " ".join(told)


def _memory(text: str) -> str:
    """Slurm's units are binary, and a bare number is of MiB."""
    number, unit = text[:-1], text[-1:].upper()
    return f"{number}{unit}iB" if unit in "KMGT" and unit else f"{text}MiB"


def _whole(text: str) -> int:
    """Python's `int` alone would take `1_0` and the digits of every script."""
    if not _is_whole(text):
        raise ValueError(text)
    return int(text)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _array(text: str) -> str:
    """`0-99` is so many parts; other lists are a sweep."""
    which, _, most = text.partition("%")
    limit = f" at_most={_whole(most)}" if most else ""
    first, dash, last = which.partition("-")
    if dash and first == "0" and _is_whole(last):
        return f"parts={int(last) + 1}{limit}"
    return f"sweep=i={which.replace('-', '..')}{limit}"


def _begin(text: str) -> str:
    """`now+1hour`: a bare number is of seconds. A time of the day has no zone, and is not told."""
    later = re.fullmatch(r"now\+(0*[1-9][0-9]*)(?:(s|m(?!o)|h|d|w)[a-z]*)?", text)
    if later is None:
        raise ValueError(text)
    count, unit = int(later[1]), later[2] or "s"
    return f"begin={7 * count}d" if unit == "w" else f"begin={count}{unit}"


def _deadline(text: str) -> str:
    """`now+1hour`: Slurm removes a job that could not end before its deadline any more."""
    return f"{_begin(text).replace('begin', 'deadline')} if-late=cancel"


def _gpus(text: str) -> str:
    words = text.removeprefix("gpu:").split(":")
    model = f" gpu_model={words[0]}" if len(words) > 1 else ""
    return f"gpu={words[-1] if _is_whole(words[-1]) else 1}{model}"


def _nodes(field: str, text: str) -> str:
    """`a,b`; of a range (`a[1-3]`) nothing is told."""
    if "[" in text:
        raise ValueError(text)
    return " ".join(f"{field}={name}" for name in text.split(","))


def _output(text: str) -> str:
    """Patterns that mean the same here; others are not told."""
    named = re.sub("%[0-9]*[AaJjt]", lambda sign: {"t": "%r", "a": "%r"}.get(sign[0][-1], "%j"), text)
    if re.search("%[0-9]*[^jr%]", named):
        raise ValueError(text)
    return f"output={shlex.quote(named)}"


_OF_SLURM: dict[str, Callable[[str], str]] = {
    "gpus": _gpus,
    "gpus-per-task": _gpus,
    "gpus-per-node": _gpus,
    "gres": _gpus,
    "mem": lambda text: f"memory={_memory(text)}",
    "cpus-per-task": lambda text: f"cpu={text}",
    "ntasks": lambda text: f"workers={text}",
    "time": lambda text: f"time-limit={duration_of_slurm(text)}",
    "job-name": lambda text: f"name={shlex.quote(text)}",
    "array": _array,
    "begin": _begin,
    "deadline": _deadline,
    "dependency": _dependency,
    "nodelist": lambda text: _nodes("node", text),
    "exclude": lambda text: _nodes("exclude_node", text),
    "output": _output,
}
"""What it takes to say the same here."""

_SHORT = {
    "d": "dependency",
    "c": "cpus-per-task",
    "n": "ntasks",
    "t": "time",
    "J": "job-name",
    "a": "array",
    "G": "gpus",
    "w": "nodelist",
    "x": "exclude",
    "o": "output",
}
