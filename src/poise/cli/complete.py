"""Shell completion: commands, flags, their values, and live names.

Completion must be fast: flags come from `flags.json`, which is generated from the commands, and names from one short
request to a running control plane. Without one there are no names; none is started, and nothing is printed. Each line
is a candidate and its description, separated by a tab; `:files` and `:commands` ask the shell to complete.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FLAGS = Path(__file__).with_name("flags.json")

SECONDS = 0.1
"""Time limit for the control plane's answer; a slower one is not waited for."""

LIVE = ("job", "node", "tenant", "schedule")
"""Kinds of names that a control plane completes."""

Branch = dict[str, Any]


def print_offers(words: list[str]) -> int:
    """Print the candidates for the last word. The first word is the program."""
    offers = offered(json.loads(FLAGS.read_text(encoding="utf-8")), words[1:] or [""])
    sys.stdout.write("".join(f"{offer}\n" for offer in dict.fromkeys(offers)))
    return 0


def offered(tree: Branch, words: list[str]) -> Iterator[str]:
    """Yield the candidates for the last word; the words before it select the command and the flag."""
    *before, typed = _joined(words)
    branch = tree
    while before and before[0] in branch["commands"]:
        branch, before = branch["commands"][before[0]], before[1:]
    dashes = before.index("--") if "--" in before else len(before)
    given, behind = before[:dashes], before[dashes + 1 :]
    seen, flag = _read(branch, given)
    if branch["runs"] and (dashes < len(before) or (seen and branch["arguments"] == ["command"])):
        yield ":files" if behind or seen else ":commands"  # a user's command with its arguments
    elif flag is not None:
        yield from _values(flag["values"], typed)
    elif typed.startswith("-"):
        yield from _flags(branch["flags"], given, typed)
    elif branch["commands"] and not seen:
        yield from _beginning(((name, of["help"]) for name, of in branch["commands"].items()), typed)
    else:
        kinds, place = branch["arguments"], seen + len(behind)
        if place < len(kinds) or branch["repeatable"]:
            yield from _values(kinds[min(place, len(kinds) - 1)], typed)


def _joined(words: list[str]) -> list[str]:
    """Rejoin words: bash splits `--flag=value` into three words."""
    return [*(word for word in words[:-1] if word != "="), "" if words[-1] == "=" else words[-1]]


def _read(branch: Branch, given: list[str]) -> tuple[int, Branch | None]:
    """Return the number of arguments so far, and the flag whose value comes next."""
    seen, flag = 0, None
    for word in given:
        if flag is not None:
            flag = None
        elif word.startswith("-"):
            known = branch["flags"].get(word)
            flag = known if known is not None and known["values"] is not None else None
        else:
            seen += 1
    return seen, flag


def _flags(flags: Branch, given: list[str], typed: str) -> Iterator[str]:
    """Yield flags that are not given yet, or the values of `--flag=`."""
    name, equals, value = typed.partition("=")
    if equals and name in flags:
        yield from (f"{name}={offer}" for offer in _values(flags[name]["values"], value) if offer[0] != ":")
    elif not equals:
        left = ((name, of["help"]) for name, of in flags.items() if of["repeatable"] or name not in given)
        yield from _beginning(left, typed)


def _values(kind: Any, typed: str) -> Iterator[str]:
    """Yield values. `kind` is a list of words, a kind of names, or empty for free text."""
    if isinstance(kind, list):
        words = [word for word in kind if not word.startswith(":")]
        yield from (word for word in words if word.startswith(typed))
        yield from (word for word in kind if word.startswith(":"))
    elif kind in LIVE:
        yield from live_names(kind, typed)
    elif kind == "service":
        yield from (name for name in service_names() if name.startswith(typed))
    elif kind == "command":
        yield ":commands"
    elif kind == "file":
        yield ":files"


def _beginning(known: Iterable[tuple[str, str]], typed: str) -> Iterator[str]:
    return (f"{name}\t{text}" for name, text in known if name.startswith(typed))


def live_names(kind: str, typed: str) -> list[str]:
    """Return names of jobs and tasks, nodes, tenants or schedules, if a control plane answers at once."""
    from urllib.parse import quote

    from poise.drivers.http import Connection
    from poise.drivers.reach import environment_home, reach
    from poise.drivers.security import token_for
    from poise.errors import PoiseError

    path = f"/v1/names/{kind}?typed={quote(typed, safe='')}"
    try:
        home = environment_home()
        headers = {"Authorization": f"Bearer {token_for(home)}"}
        with Connection(reach(home, SECONDS)) as connection:
            answer = connection.ask("GET", path, headers)
            names = json.loads(answer.read()) if answer.status == 200 else []
    except (OSError, ValueError, PoiseError):
        return []
    return [str(name) for name in names]


def service_names() -> list[str]:
    """Return the services whose gateways run here, from their replicas' sockets `NAME.GATEWAY.sock`."""
    from poise.drivers.reach import environment_home
    from poise.errors import PoiseError

    try:
        found = {path.stem.rpartition(".")[0] for path in environment_home().services.glob("*.*.sock")}
    except (OSError, PoiseError):
        return []
    return sorted(found)
