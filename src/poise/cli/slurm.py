"""Translates Slurm options: those of `#SBATCH` lines into directives, and those typed as flags into hints. Typed
options of Docker, torchrun and others get hints too.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from poise.errors import ErrorRecord
from poise.model.arrays import MAX_PARTS
from poise.units import duration_of_slurm, parse_duration

_VARIABLE = re.compile(r"\bSLURM_[A-Z0-9_]+\b")
_JOB = re.compile(r"[0-9]+|[A-Za-z][A-Za-z0-9_.-]*")
_LINE = re.compile(r"#SBATCH\s+(.*)")
_PER_CPU, _PER_NODE = "mem-per-cpu=", "ntasks-per-node="


class Read(NamedTuple):
    """A line of `#SBATCH`: its number (from 1), the equivalent directives, the options without a counterpart, and
    errors for options that cannot be dropped without changing the job's meaning.
    """

    line: int
    words: tuple[str, ...]
    lost: tuple[str, ...] = ()
    wrong: tuple[ErrorRecord, ...] = ()


def of_slurm(head: Sequence[str]) -> list[Read]:
    """Translate the `#SBATCH` lines at the head of a script. As in Slurm, the script runs once, however many tasks it
    requests: it gets the CPUs and devices of all of them.
    """
    found, words = _lines(head)
    each = {"cpu": "1"} | {name: words[name] for name in ("cpu", "gpu") if name in words}
    if not any("gpus-per-task" in line for line in head):
        each.pop("gpu", None)
    count = "workers=" if "workers" in words else _PER_NODE
    tasks = _tasks(words)
    for name, amount in each.items() if tasks > 1 else ():
        if _is_whole(amount):
            whole = f"{name}={tasks * int(amount)}"
            found = [_replaced(read, f"{name}=" if name in words else count, whole) for read in found]
    found = [_replaced(_replaced(read, "workers="), _PER_NODE) for read in found]
    found = [_replaced(read, _PER_CPU, _memory_of_all(words, found)) for read in found]
    if "sweep" in words or "parts" in words:
        number = "${i}" if "sweep" in words else "%r"
        found = [read._replace(words=tuple(_for_each(word, number) for word in read.words)) for read in found]
    return found


def tasks_of_slurm(head: Sequence[str]) -> int:
    """Return the number of tasks that the `#SBATCH` lines at the head of a script request."""
    return _tasks(_lines(head)[1])


def variables_of_slurm(script: str, spec: Mapping[str, Any], tasks: int = 1) -> tuple[dict[str, str], list[str]]:
    """Return the Slurm variables that a script uses: those with an equivalent, with their values in shell syntax, and
    the names of the others. Each of the `tasks` of the script has an equal share of its CPUs.
    """
    resources = spec.get("resources", {})
    cpu = str(resources.get("cpu", 1))
    each = str(max(1, int(cpu) // tasks)) if _is_whole(cpu) else cpu
    known = {
        "SLURM_JOB_ID": "${POISE_JOB#j}",
        "SLURM_JOBID": "${POISE_JOB#j}",
        "SLURM_JOB_NAME": shlex.quote(str(spec.get("name", ""))),
        "SLURM_CPUS_PER_TASK": each,
        "SLURM_CPUS_ON_NODE": cpu,
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_NNODES": "1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_SUBMIT_DIR": '"$PWD"',
        "SLURM_RESTART_COUNT": "$((POISE_EPOCH - 1))",
    }
    if "parts" in spec or "sweep" in spec:
        number = "$POISE_PART" if "parts" in spec else "$POISE_SWEEP_I"
        own = f"$((${{POISE_JOB#j}} * {MAX_PARTS} + POISE_PART))"  # each task has its own id, as in Slurm
        known |= {"SLURM_JOB_ID": own, "SLURM_JOBID": own}
        known |= {"SLURM_ARRAY_TASK_ID": number, "SLURM_ARRAY_JOB_ID": "${POISE_JOB#j}"}
    used = list(dict.fromkeys(_VARIABLE.findall(script)))
    return {name: known[name] for name in used if name in known}, [name for name in used if name not in known]


def _lines(head: Sequence[str]) -> tuple[list[Read], dict[str, str]]:
    """Return the `#SBATCH` lines, and all of their directives."""
    matches = ((number, _LINE.fullmatch(line.strip())) for number, line in enumerate(head, start=1))
    found = [_read(number, match[1]) for number, match in matches if match]
    return found, dict(word.partition("=")[::2] for read in found for word in read.words)


def _tasks(words: Mapping[str, str]) -> int:
    tasks = words.get("workers", words.get(_PER_NODE[:-1], "1"))
    return max(1, int(tasks)) if _is_whole(tasks) else 1


def _memory_of_all(words: Mapping[str, str], found: Sequence[Read]) -> str:
    """Return the directive for the memory of all CPUs; empty if the memory of the job is given."""
    cpus = next((word[4:] for read in found for word in read.words if word.startswith("cpu=")), "1")
    each = re.fullmatch("([0-9]+)(.*)", words.get(_PER_CPU[:-1], ""))
    if each is None or "memory" in words or not _is_whole(cpus):
        return ""
    return f"memory={int(each[1]) * int(cpus)}{each[2]}"


def _replaced(read: Read, begins: str, by: str = "") -> Read:
    """Replace the words with the prefix `begins` by `by`; drop them if that is empty."""
    words = ((by if word.startswith(begins) else word) for word in read.words)
    return read._replace(words=tuple(word for word in words if word))


def _read(number: int, line: str) -> Read:
    told: list[str] = []
    lost: list[str] = []
    wrong: list[ErrorRecord] = []
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        what = f"the options cannot be read: {str(error).lower()}"
        hint = '#SBATCH --output="my logs/%j"'
        return Read(number, (), wrong=(ErrorRecord(code="E102", message=what, have=line[:80], hint=hint),))
    while words:
        name, _, value = words.pop(0).partition("=")
        if not name.startswith("--"):
            name, value = f"--{_SHORT.get(name[1:2], name[1:2])}", name[2:] or value
        if name[2:] in _ALONE:
            told.append(name[2:])
            continue
        if not value and words and not words[0].startswith("-"):
            value = words.pop(0)
        if name == "--gres":
            value, *more = value.split(",")
            words[:0] = [f"--gres={one}" for one in more]
        translate = _OF_SLURM.get(name[2:])
        if translate and not value:
            what, hint = f"`{name}` takes a value", f"#SBATCH {name}=…"
            wrong.append(ErrorRecord(code="E102", message=what, field=name, need="a value", hint=hint))
            continue
        try:
            told += shlex.split(translate(value)) if translate else []
            lost += [] if translate else [name]
        except ValueError:  # malformed, or without a counterpart
            if name == "--dependency":
                wrong.append(_unfollowed(value))
            else:
                lost.append(name)
    return Read(number, tuple(told), tuple(lost), tuple(wrong))


def _unfollowed(value: str) -> ErrorRecord:
    """Return the error for a dependency without a counterpart: without it the job would start at once."""
    return ErrorRecord(
        code="E102",
        message="nothing here is the same as this dependency",
        field="--dependency",
        have=value[:80],
        need="afterok:JOB, afterany:JOB or afternotok:JOB, separated by commas",
        hint="`poise submit --after JOB` waits for a job, `--hold` for you",
    )


def flags_of_others(option: str, given: Sequence[str]) -> str:
    """Return a hint with the flags that match an option of Slurm or another program; empty if there are none."""
    begins = option if len(option) == 2 else f"{option}="
    at = next((at for at, word in enumerate(given) if word == option or word.startswith(begins)), len(given))
    word, *after = given[at : at + 2] or [""]
    value = word.removeprefix(option).removeprefix("=") or "".join(after)
    if option == "--gpus" and value == "all":
        return "`--gpu N`: `poise nodes` lists the devices"
    name = option.lstrip("-").replace("_", "-")
    translate = _TYPED.get(name) or _OF_SLURM.get(_SHORT.get(name, "") if len(option) == 2 else name)
    try:
        told = shlex.split(translate(value)) if translate and value else []
    except ValueError:
        return ""
    parts = [one.partition("=") for one in told]
    flags = " ".join(f"--{name.replace('_', '-')} {shlex.quote(text)}" for name, _, text in parts)
    return f"`{flags}`" if flags else ""


def _for_each(directive: str, number: str) -> str:
    """Give each task its own output file: by its number in the array where the name has one."""
    name, _, path = directive.partition("=")
    if name != "output":
        return directive
    if "%r" in path:
        return directive.replace("%r", number)
    stem, dot, ending = path.rpartition(".")
    return f"output={stem}-%r.{ending}" if dot and "/" not in ending else f"output={path}-%r"


def _dependency(text: str) -> str:
    """Translate `afterok:1:2`, also with our ids and names. Alternatives (`?`) have no counterpart."""
    told = []
    for one in text.split(","):
        how, *jobs = one.split(":")
        field = {"afterok": "after", "afterany": "after_any", "afternotok": "after_failure"}.get(how)
        if field is None or not jobs or not all(map(_JOB.fullmatch, jobs)):
            raise ValueError(text)
        told += [f"{field}={f'j{job}' if _is_whole(job) else job}" for job in jobs]
    return " ".join(told)


def _memory(text: str) -> str:
    """Translate memory: Slurm's units are binary, and a bare number is in MiB."""
    match = re.fullmatch(r"([0-9]+)(?:([KMGT])(?:I?B)?)?", text.upper())
    if match is None:
        raise ValueError(text)
    return f"{match[1]}{match[2] or 'M'}iB"


def _bytes(text: str) -> str:
    """Translate memory: Docker's units are binary, and a bare number is in bytes."""
    return text if _is_whole(text) else _memory(text)


def _time(text: str) -> str:
    """Translate a duration: Slurm's `1:00:00`, or ours."""
    try:
        parse_duration(text)
    except ValueError:
        return duration_of_slurm(text)
    return text


def _variable(text: str) -> str:
    """Translate Docker's `-e A=B`. Without a name, `-e` is Slurm's file for errors, which has no counterpart."""
    if not re.match("[A-Za-z_][A-Za-z0-9_]*(=|$)", text):
        raise ValueError(text)
    return f"env={shlex.quote(text)}"


def _whole(text: str) -> int:
    """Parse digits 0 to 9; `int` would also accept `1_0` and other scripts' digits."""
    if not _is_whole(text):
        raise ValueError(text)
    return int(text)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _array(text: str) -> str:
    """Translate `0-99` to `parts`, other lists to a sweep."""
    which, _, most = text.partition("%")
    limit = f" at_most={_whole(most)}" if most else ""
    first, dash, last = which.partition("-")
    if dash and first == "0" and _is_whole(last):
        return f"parts={int(last) + 1}{limit}"
    return f"sweep=i={which.replace('-', '..')}{limit}"


def _begin(text: str) -> str:
    """Translate `now+1hour`; a bare number is in seconds. A time of day has no zone and is not translated."""
    later = re.fullmatch(r"now\+(0*[1-9][0-9]*)(?:(s|m(?!o)|h|d|w)[a-z]*)?", text)
    if later is None:
        raise ValueError(text)
    count, unit = int(later[1]), later[2] or "s"
    return f"begin={7 * count}d" if unit == "w" else f"begin={count}{unit}"


def _deadline(text: str) -> str:
    """Translate `now+1hour`: Slurm removes a job that can no longer meet its deadline."""
    return f"{_begin(text).replace('begin', 'deadline')} if-late=cancel"


def _time_limit(text: str) -> str:
    """Translate a time limit: Slurm's `0` and its words for it mean none."""
    limit = "" if text.lower() in ("infinite", "unlimited") else duration_of_slurm(text)
    return f"time-limit={limit}" if limit else ""


def _gres(text: str) -> str:
    """Translate `gpu:2` or `gpu:a100:2`; `gpu:a100` means one."""
    kind, *words = text.removeprefix("gres:").split(":")
    if kind != "gpu":
        raise ValueError(text)
    return _gpus(":".join(words if words and _is_whole(words[-1]) else [*words, "1"]))


def _gpus(text: str) -> str:
    if "," in text:
        raise ValueError(text)
    words = text.split(":")
    model = f" gpu_model={words[0]}" if len(words) > 1 else ""
    return f"gpu={words[-1] if _is_whole(words[-1]) else 1}{model}"


def _one_node(text: str) -> str:
    """Translate one node: a script runs on one. More are not translated."""
    if text not in ("1", "1-1"):
        raise ValueError(text)
    return ""


def _nodes(field: str, text: str) -> str:
    """Translate `a,b`; ranges (`a[1-3]`) are not translated."""
    if "[" in text:
        raise ValueError(text)
    return " ".join(f"{field}={name}" for name in text.split(","))


def _name(text: str) -> str:
    """Translate a name: Slurm allows any characters and length."""
    name = re.sub("[^A-Za-z0-9._-]+", "-", text).strip("-._")[:63]
    if not name:
        raise ValueError(text)
    return f"name={name}"


def _output(text: str) -> str:
    """Translate patterns with the same meaning; others are not translated."""
    named = re.sub("%[0-9]*[AaJjt]", lambda sign: {"t": "%r", "a": "%r"}.get(sign[0][-1], "%j"), text)
    if re.search("%[0-9]*[^jr%]", named):
        raise ValueError(text)
    return f"output={shlex.quote(named)}"


_OF_SLURM: dict[str, Callable[[str], str]] = {
    "gpus": _gpus,
    "gpus-per-task": _gpus,
    "gpus-per-node": _gpus,
    "gres": _gres,
    "mem": lambda text: f"memory={_memory(text)}",
    "mem-per-cpu": lambda text: f"{_PER_CPU}{_memory(text)}",
    "cpus-per-task": lambda text: f"cpu={text}",
    "ntasks": lambda text: f"workers={text}",
    "ntasks-per-node": lambda text: f"{_PER_NODE}{_whole(text)}",
    "nodes": _one_node,
    "time": _time_limit,
    "job-name": _name,
    "array": _array,
    "begin": _begin,
    "deadline": _deadline,
    "dependency": _dependency,
    "nodelist": lambda text: _nodes("node", text),
    "exclude": lambda text: _nodes("exclude_node", text),
    "output": _output,
}
"""Translations of `#SBATCH` options."""

_TYPED: dict[str, Callable[[str], str]] = {
    "cpus": lambda text: f"cpu={text}",
    "m": lambda text: f"memory={_bytes(text)}",
    "mem-per-cpu": lambda text: f"memory={_memory(text)}",
    "ram": lambda text: f"memory={_bytes(text)}",
    "walltime": lambda text: f"time-limit={_time(text)}",
    "timeout": lambda text: f"time-limit={_time(text)}",
    "time": lambda text: _time_limit(text) if _is_whole(text) else f"time-limit={_time(text)}",
    "ntasks-per-node": lambda text: f"workers={_whole(text)} together=node",
    "retry": lambda text: f"retries={_whole(text)}",
    "restart": lambda text: f"retries={_whole(text.removeprefix('on-failure:'))}",
    "e": _variable,
    "nodes": lambda text: f"workers={_whole(text)} spread=node",
    "N": lambda text: f"workers={_whole(text)} spread=node",
    "nnodes": lambda text: f"workers={_whole(text)} spread=node",
    "nproc-per-node": lambda text: f"workers={_whole(text)} together=node",
    "num-processes": lambda text: f"workers={_whole(text)}",
}
"""Typed options that `#SBATCH` lines lack, or that mean something else there."""

_ALONE = ("hold",)
"""Options without a value that have the same name here."""

_SHORT = {
    "H": "hold",
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
    "p": "partition",
    "N": "nodes",
    "A": "account",
    "q": "qos",
    "e": "error",
    "D": "chdir",
}
