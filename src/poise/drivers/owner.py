"""Starts a command as the Unix account of its owner: the only code of Poise that changes users.

A keeper of root loads this file with the first command that has an account, and calls `spawn`. The child drops all
rights before it executes the command; the keeper itself stays root, so an account can neither signal nor trace it. Like
the keeper, this file uses only a small part of the standard library, and one thread.

Rules it keeps
    * It never starts anything as root or as an account of the system, whatever the request says.
    * The command starts only if every step that the kernel must grant to root has succeeded: its groups, its ids and
      `no_new_privs` are read back. If one has failed, the command does not start.
    * The child holds no file of the keeper after `exec`, and cannot be traced before: the kernel forbids it for a
      process that has changed its ids.
    * Its own mounts are best effort, since a container may forbid them; `lacks` says which are missing. They are a
      private /tmp, a /proc that shows only its own processes, and no device nodes of other attempts. Commands of an
      account with the same mounts share a namespace: to make one takes longer than to start a command.

A REQUEST is the value `owner` of an order: account, tmp (the folder that becomes /tmp and /var/tmp), hide (device nodes
to cover), processes (most processes of the account; 0: the default), refused (why the agent could not prepare the
command; empty if it could). Only `account` is needed.
"""

# pathlib would make a keeper's memory larger by a seventh:
# ruff: noqa: PTH119

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pwd
import re
import resource
import stat

TYPE_CHECKING = False  # `typing` is as large as `pathlib`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn

LEAST_ID = 1000
"""Lower user and group ids belong to the system."""

NOT_PEOPLE = (65534, 65535, 2**32 - 1)
"""`nobody`, and the values that stand for no id."""

NO_LOGIN = ("nologin", "false")
"""Shells of accounts that nobody uses."""

PROCESSES_PER_CPU = 512
"""Most processes and threads of an account for each CPU, unless the request says otherwise; at least two CPUs count."""

MOST_HIDDEN = 4096
MOST_GROUPS = 65_536
MOST_VIEWS = 16
UMASK = 0o077

_NAME = re.compile(r"[a-z_][a-z0-9_.\-]{0,31}\Z", re.IGNORECASE)
_NODE = re.compile(r"/dev/[A-Za-z0-9_.\-]{1,64}(/[A-Za-z0-9_.\-]{1,64}){0,3}\Z")
_FIELDS = {"account", "tmp", "hide", "processes", "refused"}

_NEW_NAMESPACE = 0x20000  # CLONE_NEWNS
_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _SLAVE = 2, 4, 8, 4096, 1 << 14, 1 << 19
_BOUND_DROP, _KEEP_CAPS, _NO_NEW_PRIVS, _GET_NO_NEW_PRIVS = 24, 8, 38, 39  # of prctl
_HIDES_SINCE = (5, 8)
"""The kernel since which `hidepid` is an option of one mount. Before, it would change /proc of the whole machine."""

_libc = ctypes.CDLL(None, use_errno=True)
_prctl, _setns, _mounts, _unshare = _libc.prctl, _libc.setns, _libc.mount, _libc.unshare  # looked up before a fork


class Refused(Exception):
    """The command does not start; `code` is the exit code that a shell would give."""

    def __init__(self, note: str, code: int = 126) -> None:
        super().__init__(note)
        self.code = code


class Account:
    """A Unix account as which commands may run."""

    def __init__(self, name: str, uid: int, gid: int, groups: Sequence[int], home: str, shell: str) -> None:
        self.name = name
        self.uid = uid
        self.gid = gid
        self.groups = groups
        self.home = home
        self.shell = shell


def account_of(name: object) -> Account:
    """Return the account of this name. Raises `Refused` if there is none, or if commands may not run as it."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise Refused("this is not the name of an account")
    try:
        found = pwd.getpwnam(name)
        groups = os.getgrouplist(found.pw_name, found.pw_gid)
    except KeyError:
        raise Refused(f"there is no account `{name}` on this machine") from None
    except (OSError, ValueError) as error:
        raise Refused(f"the account `{name}` cannot be looked up: {error}") from None
    if why := why_not(found):
        raise Refused(f"commands never run as `{name}`: {why}")
    kept = sorted({group for group in groups if group not in (0, *NOT_PEOPLE)} | {found.pw_gid})
    if len(kept) > MOST_GROUPS:
        raise Refused(f"the account `{name}` has more than {MOST_GROUPS} groups")
    return Account(name, found.pw_uid, found.pw_gid, kept, found.pw_dir or "/", found.pw_shell or "/bin/sh")


def why_not(found: pwd.struct_passwd) -> str:
    """Return why commands may not run as an account, or ""."""
    if found.pw_uid == 0:
        return "it is root"
    if found.pw_uid < LEAST_ID or found.pw_uid in NOT_PEOPLE:
        return f"it is an account of the system (user id {found.pw_uid})"
    if found.pw_gid == 0 or found.pw_gid in NOT_PEOPLE:
        return f"its group is one of the system (group id {found.pw_gid})"
    shell = os.path.basename(found.pw_shell)
    return f"nobody may log in to it (shell {shell})" if shell in NO_LOGIN else ""


class Request:
    """A checked request. Raises `Refused`."""

    def __init__(self, asked: object) -> None:
        if not isinstance(asked, dict) or not _FIELDS.issuperset(asked):
            raise Refused("the request has fields that nobody knows")
        if why := asked.get("refused"):
            raise Refused(str(why))
        self.account = account_of(asked.get("account"))
        self.tmp: str = asked.get("tmp", "")
        if not isinstance(self.tmp, str) or (self.tmp and not _is_path(self.tmp)):
            raise Refused("`tmp` is not an absolute path")
        self.hide: Sequence[str] = asked.get("hide", ())
        if not isinstance(self.hide, list | tuple) or len(self.hide) > MOST_HIDDEN:
            raise Refused("`hide` is not a list of device nodes")
        for node in self.hide:
            if not isinstance(node, str) or not _NODE.match(node) or "/." in node:
                raise Refused("`hide` names something other than a device node")
        self.processes: int = asked.get("processes", 0)
        if type(self.processes) is not int or not 0 <= self.processes <= 2**31:
            raise Refused("`processes` is not a number of processes")


def _is_path(text: str) -> bool:
    return text.startswith("/") and "\0" not in text and ".." not in text.split("/") and len(text) < 4096


def spawn(
    request: Request,
    enter: Callable[[], str],
    argv: list[str],
    env: Mapping[str, str],
    actions: Sequence[tuple[Any, ...]] = (),
) -> int:
    """Start a command as an account, in a session of its own, and return its pid once it is executed. `enter` enters
    the folder of the command and returns its program; it runs with the rights of the account. `actions` are as for
    `posix_spawn`.

    Raises OSError of the step that failed, with the program as its `filename`, and `Refused` for an exception of
    `enter`, with its `code`.
    """
    view = _view(request)
    reads, writes = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become(request, view, enter, argv, env, actions, writes)
    os.close(writes)
    with contextlib.closing(os.fdopen(reads, "rb")) as said:
        failure = said.read()  # its end is the execution of the command
    if not failure:
        return pid
    os.waitpid(pid, 0)
    number, code, text = failure.decode(errors="replace").split(" ", 2)
    if number == "0":
        raise Refused(text, int(code))
    raise OSError(int(number), os.strerror(int(number)), text)


def _become(
    request: Request,
    view: int,
    enter: Callable[[], str],
    argv: list[str],
    env: Mapping[str, str],
    actions: Sequence[tuple[Any, ...]],
    writes: int,
) -> NoReturn:
    """Turn this process, a copy of the keeper, into the command. It never returns into the keeper's code."""
    program = ""
    try:
        os.setsid()  # nobody sends a signal before `exec`, which resets them: the keeper waits for it
        _open_ends(actions, request.account)
        if view >= 0:
            _call(_setns, view, _NEW_NAMESPACE)
        drop(request)
        account = request.account
        own = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
        program = enter()
        os.execve(program, argv, {**own, **env})  # noqa: S606 — what the user asks for
    except OSError as error:
        told = f"{error.errno or errno.EIO} 126 {program}"
    except BaseException as error:
        told = f"0 {getattr(error, 'code', 126)} {error}"
    with contextlib.suppress(OSError):
        os.write(writes, told.encode(errors="replace")[:4096])
    os._exit(127)


def _open_ends(actions: Sequence[tuple[Any, ...]], account: Account) -> None:
    """Do what `posix_spawn` would do with file actions. A terminal belongs to the account, which may open it again."""
    for action in actions:
        if action[0] == os.POSIX_SPAWN_OPEN:
            _, fd, path, flags, mode = action
            opened = os.open(path, flags, mode)
            os.dup2(opened, fd)
            if opened != fd:
                os.close(opened)
            if os.isatty(fd):
                os.fchown(fd, account.uid, -1)
        elif action[0] == os.POSIX_SPAWN_DUP2:
            os.dup2(action[1], action[2])
        else:
            raise OSError(errno.EINVAL, "an unknown action")


def _view(request: Request) -> int:
    """Return a file descriptor of a namespace with the mounts of a request; -1 if the kernel grants none."""
    try:
        state = os.stat(request.tmp) if request.tmp else None  # noqa: PTH116 — pathlib is large
    except OSError:
        state = None
    key = (request.tmp, state and (state.st_dev, state.st_ino), *request.hide)  # another folder may have this name now
    if key not in _views:
        while len(_views) >= MOST_VIEWS:
            os.close(_views.pop(next(iter(_views))))
        view = _made_view(request)
        if view < 0:
            return view
        _views[key] = view
    return _views[key]


_views: dict[tuple[object, ...], int] = {}


def _made_view(request: Request) -> int:
    """Make a namespace in a child process, which ends once this process holds the namespace."""
    (ready, made), (done, leave) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(leave)
            own_namespace()
            for step in mounts(request):
                with contextlib.suppress(OSError):
                    step()
            os.write(made, b"1")
            os.read(done, 1)
        finally:
            os._exit(0)
    os.close(made)
    os.close(done)
    try:
        return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC) if os.read(ready, 1) else -1
    except OSError:
        return -1
    finally:
        os.close(ready)
        os.close(leave)
        os.waitpid(pid, 0)


def mounts(request: Request) -> Iterator[Callable[[], None]]:
    """Yield the steps that make a private view of the machine in this namespace. Each raises OSError."""
    if request.tmp:
        yield lambda: _mount(request.tmp, "/tmp", "", _BIND)  # noqa: S108 — the place itself
        yield lambda: _mount(request.tmp, "/var/tmp", "", _BIND)  # noqa: S108
    for node in request.hide:
        yield lambda node=node: _mount("/dev/null", node, "", _BIND)  # type: ignore[misc]
    yield _hide_processes


def own_namespace() -> None:
    """Hide further mounts of this process from the rest of the machine. Raises OSError; then nothing may be mounted."""
    _call(_unshare, _NEW_NAMESPACE)
    _mount("none", "/", "", _RECURSIVE | _SLAVE)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    texts = [text.encode() or None for text in (source, target, kind)]
    _call(_mounts, *texts, ctypes.c_ulong(flags), data.encode() or None)


def drop(request: Request) -> None:
    """Give up all rights but those of the account, permanently. Raises OSError if anything of it fails."""
    account = request.account
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = request.processes or PROCESSES_PER_CPU * max(2, os.cpu_count() or 2)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    last = 0
    while _prctl(_BOUND_DROP, last, 0, 0, 0) == 0:  # up to the last capability that this kernel knows
        last += 1
    _call(_prctl, _KEEP_CAPS, 0, 0, 0, 0)
    _call(_prctl, _NO_NEW_PRIVS, 1, 0, 0, 0)
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    os.umask(UMASK)
    held = (os.getresuid(), os.getresgid(), sorted(os.getgroups()), _prctl(_GET_NO_NEW_PRIVS, 0, 0, 0, 0))
    wanted = ((account.uid,) * 3, (account.gid,) * 3, account.groups, 1)
    if held != wanted:
        raise OSError(errno.EPERM, "the rights were not dropped")


@contextlib.contextmanager
def borrowed(account: Account) -> Iterator[None]:
    """Open files as an account, in a process of root with one thread. The account can neither signal nor trace the
    process meanwhile: its real and saved ids stay those of root.
    """
    groups, gid = os.getgroups(), os.getegid()
    os.setgroups(account.groups)
    os.setegid(account.gid)
    os.seteuid(account.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


def own(fd: int, account: Account) -> bool:
    """Return whether this is a regular file of the account. A link that an account has made leads to other files."""
    state = os.fstat(fd)
    return stat.S_ISREG(state.st_mode) and state.st_uid == account.uid


USERS = "users"


def lacks() -> Iterator[str]:
    """Try in this process, which gives up all rights, what `spawn` does. Yield what the kernel does not grant, with the
    reason; `USERS` if commands cannot run as accounts at all.
    """
    steps: tuple[tuple[str, Callable[[], None]], ...] = (
        ("a private /tmp", own_namespace),
        ("a private /tmp", lambda: _mount("/tmp", "/tmp", "", _BIND)),  # noqa: S108
        ("a /proc without other users", _hide_processes),
        (USERS, lambda: _call(_prctl, _NO_NEW_PRIVS, 1, 0, 0, 0)),
        (USERS, lambda: os.setgroups([])),
        (USERS, lambda: os.setresgid(*[NOT_PEOPLE[0]] * 3)),
        (USERS, lambda: os.setresuid(*[NOT_PEOPLE[0]] * 3)),
    )
    for what, step in steps:
        try:
            step()
        except OSError as error:
            yield f"{what}: {error.strerror}"
            if what != USERS:
                continue
            return


def _hide_processes() -> None:
    if kernel() < _HIDES_SINCE:
        raise OSError(errno.ENOSYS, f"it needs Linux {'.'.join(map(str, _HIDES_SINCE))}")
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC, "hidepid=2")


def kernel() -> tuple[int, int]:
    """Return the version of the running kernel, such as (6, 1)."""
    first, second, *_ = [*re.findall(r"\d+", os.uname().release), "0", "0"]
    return int(first), int(second)


def _call(function: Callable[..., int], *arguments: Any) -> None:
    """Call a function of the C library. Raises OSError if it fails."""
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    for line in lacks():
        print(line)  # noqa: T201 — data for its caller
