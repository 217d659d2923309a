"""Flags of `poise up` that a home keeps for later starts, until other values or `--reset` are given."""

import contextlib

import msgspec

from poise.config import DEFAULT_POLICY, Home
from poise.decoding import json_decoder
from poise.drivers.security import ensure_home
from poise.drivers.whole import write_whole
from poise.model.fields import parse_or_raise
from poise.units import DAY, MINUTE, parse_duration

LATE = ("port", "decide_within", "outage_hold", "outage_settle", "share", "listen", "no_agent", "traces", "dashboard")
"""Flags that take effect when a control plane starts; they do not change a running one."""

KEPT = ("policy", *LATE)

LONGEST_ROUND = 1 * MINUTE
"""Maximum value of `--decide-within`: while a policy computes a round, nothing is placed."""

_SWITCHES = ("no_agent", "dashboard")

_DURATIONS = {"decide_within": LONGEST_ROUND, "outage_hold": DAY, "outage_settle": DAY}


def read_flags(home: Home) -> dict[str, str]:
    """The kept flags by parameter name, as typed; paths are absolute. Empty if the file is missing or unreadable."""
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        return json_decoder(dict[str, str]).decode(home.options.read_bytes())
    return {}


def write_flags(home: Home, flags: dict[str, str]) -> None:
    """Replace the kept flags. A full disk does not prevent the start of the control plane."""
    ensure_home(home)
    with contextlib.suppress(OSError):
        write_whole(home.options, msgspec.json.encode(flags))


def options_of(home: Home, flags: dict[str, str]) -> list[str]:
    """Return the flags as arguments of the supervisor. Raises SpecError for an invalid duration."""
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
    """Forget the kept policy: another one was set since, and is in the log."""
    flags = read_flags(home)
    if flags.keys() & {"policy", "policy_asked"}:
        write_flags(home, {name: text for name, text in flags.items() if name not in ("policy", "policy_asked")})


def kept_policy(home: Home, flags: dict[str, str]) -> str:
    """Return the policy of kept flags. For a file it is the home's copy, since the file may have changed."""
    policy = flags.get("policy", DEFAULT_POLICY)
    return str(home.policy) if policy.startswith("/") else policy


def option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def typed(flags: dict[str, str], *names: str) -> str:
    """Format these flags as typed, for a message."""
    shown = [option_of(name) if flags[name] == "True" else f"{option_of(name)} {flags[name]}" for name in names]
    return ", ".join(f"`{one}`" for one in shown)
