"""Flags of `poise up` that a home keeps: they count at later starts too, until others are given or `--reset` is."""

import contextlib

import msgspec

from poise.config import DEFAULT_POLICY, Home
from poise.decoding import json_decoder
from poise.drivers.security import ensure_home
from poise.drivers.whole import write_whole
from poise.model.fields import parse_or_raise
from poise.units import DAY, MINUTE, parse_duration

LATE = ("port", "decide_within", "outage_hold", "outage_settle", "share", "listen", "no_agent", "traces", "dashboard")
"""Flags that count when a control plane starts; a running one does not change."""

KEPT = ("policy", *LATE)

LONGEST_ROUND = 1 * MINUTE
"""Limit of `--decide-within`: while a policy computes a round, nothing is placed."""

_SWITCHES = ("no_agent", "dashboard")

_DURATIONS = {"decide_within": LONGEST_ROUND, "outage_hold": DAY, "outage_settle": DAY}


def read_flags(home: Home) -> dict[str, str]:
    """The kept flags by parameter name, as typed; paths are absolute. Empty if the file is missing or unreadable."""
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        return json_decoder(dict[str, str]).decode(home.options.read_bytes())
    return {}


def write_flags(home: Home, flags: dict[str, str]) -> None:
    """Keep these flags, and no others. A full disk does not keep the control plane from starting."""
    ensure_home(home)
    with contextlib.suppress(OSError):
        write_whole(home.options, msgspec.json.encode(flags))


def options_of(home: Home, flags: dict[str, str]) -> list[str]:
    """The same flags as arguments of the supervisor. Raises SpecError for a duration that cannot be read."""
    options = []
    for name in KEPT:
        text, option = flags.get(name), option_of(name)
        if text is None:
            continue
        if name in _SWITCHES:
            options.append(option)
        elif name in _DURATIONS:
            options += [option, str(parse_or_raise(parse_duration, text, option, _DURATIONS[name]))]
        elif name == "policy":
            options += [option, kept_policy(home, flags)]
        else:
            options += [option, text]
    if asked := flags.get("policy_asked"):
        options += ["--policy-asked", asked]
    return options


def forget_policy(home: Home) -> None:
    """Keep no policy of earlier starts: another one was set since, and the log keeps that."""
    flags = read_flags(home)
    if flags.keys() & {"policy", "policy_asked"}:
        write_flags(home, {name: text for name, text in flags.items() if name not in ("policy", "policy_asked")})


def kept_policy(home: Home, flags: dict[str, str]) -> str:
    """The policy of kept flags. Of a file it is the home's copy: the file itself may have changed or gone."""
    policy = flags.get("policy", DEFAULT_POLICY)
    return str(home.policy) if policy.startswith("/") else policy


def option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def typed(flags: dict[str, str], *names: str) -> str:
    """These flags as they are typed, for a sentence."""
    shown = [option_of(name) if flags[name] == "True" else f"{option_of(name)} {flags[name]}" for name in names]
    return ", ".join(f"`{one}`" for one in shown)
