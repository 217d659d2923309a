"""Tokens: the token of a home, created at first start, readable only by its owner and found automatically by local
commands; and tokens that an admin creates for others.
"""

import contextlib
import os
import sys
from binascii import b2a_base64
from pathlib import Path
from typing import TYPE_CHECKING

from poise.config import Home
from poise.drivers.sockets import check_shared
from poise.errors import Denied, InputError

if TYPE_CHECKING:  # every command imports this module, and few know attempts
    from poise.model.messages import Attempt

TOKEN_BYTES = 32

_FOR_URLS = bytes.maketrans(b"+/", b"-_")

ASK = "ask the owner for a token (`poise token add`), and write nothing but it into the file POISE_TOKEN_FILE names"
"""Hint for an invalid token that is not the token of the user's own home."""


def ensure_home(home: Home) -> None:
    """Create the state directory, accessible only to its owner. An existing one is left unchanged."""
    try:
        home.root.parent.mkdir(parents=True, exist_ok=True)
        home.root.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the home cannot be created: {error.strerror}",
            field=str(home.root),
            hint="set POISE_HOME to a folder of your own",
        ) from None


def ensure_token(home: Home) -> str:
    """Return the home's token; create it if it is missing. It is written atomically and never readable by other
    users."""
    ensure_home(home)
    if not home.token.exists():
        draft = home.root / f"token.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(new_secret())
            with contextlib.suppress(FileExistsError):  # another process was first: its token is used
                os.link(draft, home.token)
        except OSError as error:
            raise InputError(
                f"the token cannot be created: {error.strerror}", field=str(home.token), hint="`df -h`, `ls -ld`"
            ) from None
        finally:
            draft.unlink(missing_ok=True)
    return read_token(home)


def token_for(home: Home) -> str:
    """Return the token for requests: POISE_TOKEN, the content of the file POISE_TOKEN_FILE, that of `poise login` for a
    control plane elsewhere, or the home's own token. Raises `Denied`, and InputError if it would be sent to another
    user.
    """
    if isinstance(home.elsewhere, Path):
        check_shared(home.elsewhere)
    if token := os.environ.get("POISE_TOKEN", "").strip():
        return whole_token(token, "POISE_TOKEN", ASK)
    if file := os.environ.get("POISE_TOKEN_FILE"):
        return _read(Path(file).expanduser(), ASK, missing=("POISE_TOKEN_FILE names a file that is not there", ASK))
    if home.elsewhere is not None:
        from poise.drivers.signed import signed_in_token  # imported late: it imports this module

        if token := signed_in_token(home):
            return token
        raise Denied(
            "the control plane of another user requires a token",
            field=str(home.elsewhere),
            hint="`poise login`; or ask its admin for one (`poise token add`), and set POISE_TOKEN_FILE",
        )
    return read_token(home)


def read_secret(path: Path) -> str:
    """Return the secret in a file. Raises `Denied` if it is unreadable, or readable by other users."""
    return _read(
        path, f"write nothing but the secret into {path}", missing=("there is no such file", f"`ls -l {path}`")
    )


def read_token(home: Home) -> str:
    """Return the home's token. Raises `Denied` if it is unreadable, or readable by other users."""
    return _read(home.token, f"rm {home.token}, then `poise up`")


def own_account() -> str:
    """Return the name of the Unix account of this process; empty if it has none."""
    try:
        import pwd  # not on Windows
    except ImportError:
        return ""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""


def new_secret() -> str:
    """Return a random token that cannot be guessed."""
    return b2a_base64(os.urandom(TOKEN_BYTES), newline=False).rstrip(b"=\n").translate(_FOR_URLS).decode()


def digest(secret: str) -> str:
    """Return the stored form of a token: its SHA-256 in hexadecimal. A secret of 256 random bits needs no salt."""
    import hashlib  # imported here, because it loads OpenSSL, which most commands do not need

    return hashlib.sha256(secret.encode()).hexdigest()


MAX_TOKEN = 2**16
"""Maximum characters of a token file that are read."""

NONE_YET = ("there is no token yet", "`poise up` makes that of a home")
"""Message and hint for a home without a token."""


def _read(path: Path, remedy: str, missing: tuple[str, str] = NONE_YET) -> str:
    try:
        mode = path.stat().st_mode
        with path.open(encoding="ascii") as file:
            token = file.read(MAX_TOKEN).strip()  # a device has no end
    except FileNotFoundError:
        raise Denied(missing[0], field=str(path), hint=missing[1]) from None
    except PermissionError:
        raise Denied("the token belongs to another user", field=str(path), hint="set POISE_HOME") from None
    except IsADirectoryError:
        raise Denied("this is a folder, not a token", field=str(path), hint=remedy) from None
    except UnicodeDecodeError:
        raise Denied("the token is damaged", field=str(path), hint=remedy) from None
    if sys.platform != "win32" and mode & 0o077:  # Windows uses access lists instead of modes
        raise Denied("other users can read the token", field=str(path), hint=f"chmod 600 {path}")
    if not token:
        raise Denied("the token file is empty", field=str(path), hint=remedy)
    return whole_token(token, str(path), remedy)


def whole_token(token: str, field: str, remedy: str) -> str:
    """Return the token if it is one word of visible ASCII, as a header needs. Raises `Denied` without its value."""
    lines = token.splitlines()
    if len(lines) > 1:
        why = f"it has {len(lines)} lines"
    elif any(letter.isspace() for letter in token):
        why = "it has spaces in it"
    elif not (token.isascii() and token.isprintable()):
        why = "it has letters that no token has"
    else:
        return token
    raise Denied(f"this is not a token: {why}", field=field, hint=remedy)


def worker_key(token: str, attempt: "Attempt") -> str:
    """Return the key that authenticates one attempt that serves calls, until it is over."""
    import hmac

    return hmac.new(token.encode(), f"worker {attempt}".encode(), "sha256").hexdigest()


def caller_key(token: str, job: str, tenant: str) -> str:
    """Return the key that authenticates the submitter of a job that serves calls. It cannot be guessed from the id."""
    import hmac

    return hmac.new(token.encode(), f"caller {job} {tenant}".encode(), "sha256").hexdigest()


def same_token(given: str, token: str) -> bool:
    """Compare tokens in constant time."""
    import hmac

    return hmac.compare_digest(given.encode(), token.encode())
