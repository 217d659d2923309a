"""`poise`: finds the command, runs it, and turns errors into text, JSON and exit codes.

Commands are imported when used, so `poise --help` takes little longer than starting Python.
Data goes to stdout, messages to stderr. Exit codes: 0 success, 1 input error, 2 fault; `run`, `attach`, `exec`,
`shell` and `wait` return the command's exit code, or 125 if Poise itself fails.
"""

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from poise.errors import PoiseError

COMMANDS = {
    "run": ("poise.cli.run", "Run a command, now or when there is room, and stream its output"),
    "up": ("poise.cli.up", "Start the control plane and the agent of this machine"),
    "down": ("poise.cli.up", "Stop them"),
    "join": ("poise.cli.join", "Add this machine as a node of a control plane on another machine"),
    "status": ("poise.cli.up", "Show control-plane status"),
    "submit": ("poise.cli.submit", "Submit a job or a graph from a file, or a command, and return"),
    "serve": (
        "poise_serve.cli.serve",
        "Serve a model over HTTP, batched, on one replica or many",
    ),
    "services": ("poise_serve.cli.services", "List services with their latencies, rates and replicas"),
    "service": ("poise_serve.cli.service", "Change a running gateway: apply a file, drain, promote, undo"),
    "ls": ("poise.cli.jobs", "List jobs"),
    "show": ("poise.cli.jobs", "Show a job and its tasks"),
    "explain": ("poise.cli.explain", "Explain why a job waits or runs where it does, and find what would start it now"),
    "why-not": ("poise.cli.explain", "Show every reason why a node does not run a job"),
    "eta": ("poise.cli.eta", "Forecast when jobs start and end"),
    "forecast": ("poise.cli.forecast", "Forecast the load of the next hours by tenant, class, priority or service"),
    "what-if": ("poise_lab.cli.what_if", "Compare the forecast with a what-if scenario"),
    "plan": ("poise.cli.explain", "Show what a submission would do, without submitting"),
    "unblock": ("poise.cli.explain", "Find the smallest change that lets a waiting job start now"),
    "dashboard": ("poise.cli.dashboard", "Show the fleet, the queue and jobs in a browser, live"),
    "top": ("poise.cli.top", "Show the fleet and its jobs, live"),
    "logs": ("poise.cli.logs", "Print the output of a job"),
    "results": ("poise.cli.results", "List the results of all tasks of a job"),
    "get": ("poise.cli.get", "Copy a file or a folder of a job from its node"),
    "attach": ("poise.cli.attach", "Follow a running job, and send it input"),
    "exec": ("poise.cli.exec", "Run a command beside a running task: in its folder, on its devices"),
    "shell": ("poise.cli.shell", "Open a terminal or a Jupyter server on a part of a device"),
    "ssh": ("poise.cli.ssh", "Open an SSH session beside a running job, also for editors"),
    "forward": ("poise.cli.forward", "Open ports of this machine that lead to a running job"),
    "capture": ("poise.cli.capture", "Capture what a running task does: a flame graph, or a trace of PyTorch"),
    "wait": ("poise.cli.jobs", "Wait until jobs have ended"),
    "cancel": ("poise.cli.jobs", "Cancel jobs"),
    "hold": ("poise.cli.change", "Hold jobs: they do not start until they are released"),
    "release": ("poise.cli.change", "Release jobs that are on hold"),
    "set": ("poise.cli.change", "Change the priority, deadline, resources, … of an unfinished job"),
    "retry": ("poise.cli.change", "Run the failed and skipped tasks of a job again"),
    "schedules": ("poise.cli.schedules", "List, hold, release and remove schedules of recurring jobs"),
    "rm": ("poise.cli.change", "Remove ended jobs and their output"),
    "nodes": ("poise.cli.nodes", "List nodes and their use"),
    "incidents": ("poise.cli.incidents", "List incidents, or show the cause and the timeline of one"),
    "profile": ("poise.cli.profile", "Show how busy nodes have been, with advice"),
    "drain": ("poise.cli.nodes", "Close a node to new work, or open it again"),
    "doctor": ("poise.cli.doctor", "Check this installation and suggest fixes"),
    "bench-devices": ("poise.cli.bench_devices", "Measure the speed of this machine's devices"),
    "catalogue": ("poise.cli.catalogue", "List the device models that Poise knows, with sources"),
    "policy": ("poise.cli.policy", "Show or change the scheduling policy"),
    "shadow": ("poise.cli.shadow", "Compare policies with the current one, without an effect"),
    "promote": ("poise.cli.shadow", "Let a policy in shadow decide from now on"),
    "rollback": ("poise.cli.shadow", "Restore the policy that decided before"),
    "usage": ("poise.cli.usage", "Show who used what, and the charge"),
    "budgets": ("poise.cli.budgets", "Set the budgets of tenants, projects and users"),
    "shares": ("poise.cli.shares", "Show, foresee and set fair shares of tenants"),
    "reserve": ("poise.cli.reserve", "Reserve nodes and devices for tenants, or for maintenance"),
    "rules": ("poise_lab.cli.rules", "Show, test and load rules that act on the fleet"),
    "quota": ("poise.cli.quota", "Set, list and remove quotas of tenants"),
    "token": ("poise.cli.tokens", "Create, list and revoke tokens"),
    "login": ("poise.cli.login", "Sign in with your company account"),
    "logout": ("poise.cli.login", "Revoke your sign-in"),
    "whoami": ("poise.cli.tokens", "Show the tenant and the role of your token"),
    "audit": ("poise.cli.tokens", "List changes and who made them"),
    "events": ("poise.cli.events", "Print the log of events and decisions"),
    "report": ("poise_lab.cli.report", "Report on past jobs: figures, or an HTML page with a timeline"),
    "hotspots": ("poise.cli.hotspots", "Show where the time of jobs goes, by class of work and step"),
    "decisions": ("poise.cli.decisions", "Show what each round decided, why, and the alternatives"),
    "timeline": ("poise.cli.timeline", "Show attempts over time by node and device, or export a trace"),
    "replay": ("poise.cli.replay", "Repeat the decisions of a log, and compare"),
    "simulate": ("poise_lab.cli.simulate", "Simulate a policy on a recorded trace"),
    "compare": ("poise_lab.cli.simulate", "Compare policies on one recorded trace"),
    "tune": ("poise_lab.cli.tune", "Find the numbers of a policy that suit a trace"),
    "learn": ("poise_lab.cli.learn", "Train a network that picks what starts next"),
    "rehearse": (
        "poise_lab.cli.rehearse",
        "Simulate a service on recorded requests: latencies, use and cost",
    ),
    "completion": ("poise.cli.completion", "Generate shell completions"),
    "schema": ("poise.cli.schema", "Print the JSON Schema of a kind of file"),
    "faults": ("poise.cli.faults", "Test the scheduler on a simulated fleet with random faults"),
    "demo": ("poise_lab.cli.demo", "Run a demo of one minute, live and simulated"),
}

GROUPS = {
    "First steps": ("run", "submit", "ls", "show", "logs", "wait", "cancel", "explain", "up", "down"),
    "Jobs": (
        "results",
        "get",
        "exec",
        "attach",
        "shell",
        "ssh",
        "forward",
        "capture",
        "hold",
        "release",
        "set",
        "retry",
        "rm",
        "schedules",
    ),
    "Forecasts": ("plan", "eta", "forecast", "what-if"),
    "Fleet": (
        "status",
        "top",
        "dashboard",
        "nodes",
        "join",
        "profile",
        "incidents",
        "drain",
        "doctor",
        "bench-devices",
        "catalogue",
    ),
    "Policies": ("policy", "shadow", "promote", "rollback", "rules"),
    "Services": ("serve", "services", "service", "rehearse"),
    "Users": ("login", "logout", "token", "whoami", "quota", "budgets", "shares", "reserve", "usage", "audit"),
    "Log": ("events", "decisions", "timeline", "report", "hotspots", "replay"),
    "Simulation": ("simulate", "compare", "tune", "learn", "faults", "demo"),
    "Files and shells": ("schema", "completion"),
}
"""The commands as `poise --help` lists them, those for beginners first."""

ALIASES = {"why-not": "explain JOB --node NODE", "unblock": "explain JOB --unblock"}
"""Commands outside the groups: other names, each with the usage that it abbreviates."""

COMPLETE = "__complete"
"""The hidden command that shells call for completion."""

OWN_FAILURE = 125
GIVES_CHILD_CODE = frozenset({"run", "wait", "exec", "attach", "shell", "ssh"})


def help_text() -> str:
    """Return the text of `poise --help`. Importing a flag parser would take longer than starting Python."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "Usage: poise [-h] [--version] COMMAND ...",
            "",
            "  Poise keeps a mixed fleet of accelerators busy, fair and on time.",
            "",
            "  Start with `poise run -- COMMAND`; nothing needs to be started first.",
            "",
            *(line for group, names in GROUPS.items() for line in (f"{group}:", *_listed(names, width), "")),
            "Other names:",
            *(f"  {name:<{width}}  `poise {usage}`" for name, usage in ALIASES.items()),
            "",
            "`poise COMMAND --help` tells the flags of each. POISE_HOME (~/.poise) is where everything lies.",
        ]
    )


def _listed(names: tuple[str, ...], width: int) -> list[str]:
    return [f"  {name:<{width}}  {COMMANDS[name][1]}" for name in names]


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code. Without `arguments`, run that of this process, which exits next.

    The garbage collector runs seldom during imports, and not at exit: both take a fifth of a short command.
    """
    if arguments is not None:
        return _run(arguments)
    gc.set_threshold(50_000, 20, 50)
    if sys.stdout is None:  # closed by `>&-`
        import os

        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 — for as long as this process lives
    try:
        return _run(sys.argv[1:])
    except KeyboardInterrupt:  # also during imports
        return 130
    finally:
        gc.freeze()


def _run(given: list[str]) -> int:
    if given in ([], ["-h"], ["--help"], ["help"]):
        return _print_help()
    if given[0] == "help":
        given = [*given[1:], "--help"]
    elif given == ["version"]:
        given = ["--version"]
    if given[0] == COMPLETE:
        from poise.cli.complete import print_offers

        return print_offers(given[1:])
    import click

    from poise.cli.group import poise

    name = given[0]
    try:
        code = poise.main(given, prog_name="poise", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        return 130
    except click.NoSuchOption as error:
        text = error.format_message()
        if name in ("run", "submit", "plan"):
            from poise.cli.slurm import flags_of_others

            meant = flags_of_others(error.option_name, _before_dashes(given))
            text = f"{error.message}\n\nhint: {meant}" if meant else text
        return _usage_error(text, name, given)
    except click.ClickException as error:
        return _usage_error(error.format_message(), name, given)
    except BrokenPipeError:
        return broken_pipe()
    except Exception as error:
        from poise.errors import PoiseError

        if not isinstance(error, PoiseError):
            error = _unexpected(error)
        _show(error, as_json=_asks_for_json(_own(name, given)))
        return OWN_FAILURE if name in GIVES_CHILD_CODE else error.exit_code


def _print_help() -> int:
    try:
        print(help_text(), flush=True)  # noqa: T201 — nothing else is imported yet
    except BrokenPipeError:
        return broken_pipe()
    except OSError as error:
        failed = _unexpected(error)
        _show(failed, as_json=False)
        return failed.exit_code
    return 0


def _show(error: "PoiseError", *, as_json: bool) -> None:
    """Print an error: as JSON if requested and stdout can be written, else as text on stderr."""
    from poise.cli.render import show_error

    try:
        if as_json:
            show_error(error, as_json=True)
        sys.stdout.flush()
    except OSError:
        broken_pipe()
        as_json = False
    if not as_json:
        show_error(error, as_json=False)


def _before_dashes(given: list[str]) -> list[str]:
    return given[: given.index("--")] if "--" in given else given


def _own(name: str, given: list[str]) -> list[str]:
    """Return the arguments of Poise itself: those before `--`; for `run`, those before the command."""
    own = _before_dashes(given)
    if name != "run":
        return own
    position = 1
    while position < len(own) and own[position].startswith("-"):
        alone = own[position] in ("--json", "--help", "-h") or "=" in own[position]
        position += 1 if alone else 2
    return own[:position]


def _asks_for_json(own: list[str]) -> bool:
    """Return whether the arguments ask for JSON, in any spelling of the flag."""
    said = " ".join(own).replace("--output=", "-o").replace("--output ", "-o").replace("-o ", "-o").split()
    return "--json" in said or "-ojson" in said


def _usage_error(text: str, name: str, given: list[str]) -> int:
    from poise.errors import InputError

    message, _, hint = text.partition("\n\nhint: ")
    message = (message[:1].lower() + message[1:]).rstrip(".")
    hint = hint or (f"`poise {name} --help`" if name in COMMANDS else "`poise --help`")
    _show(InputError(message, hint=hint), as_json=_asks_for_json(_own(name, given)))
    return OWN_FAILURE if name in GIVES_CHILD_CODE else 1


def _unexpected(error: Exception) -> "PoiseError":
    import errno
    import os
    import traceback

    from poise.errors import Fault, InputError

    if os.environ.get("POISE_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, ImportError) and (error.name or "").startswith(("poise.", "poise_")):
        from poise.control.start import SUPERVISOR
        from poise.errors import client_only

        if not SUPERVISOR.exists():
            return client_only()
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        return Fault("the disk is full: the output cannot be written", hint="`df -h`")
    if isinstance(error, FileNotFoundError) and not _has_folder():
        return InputError("the current folder no longer exists", hint="`cd` to another folder")
    return Fault(f"an internal error: {type(error).__name__}: {error}", hint="POISE_DEBUG=1 shows where")


def _has_folder() -> bool:
    from pathlib import Path

    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def broken_pipe() -> int:
    """End quietly: the reader of the output has closed it, or its disk is full. Discard the rest."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
