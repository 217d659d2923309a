"""The token of a home: made at first start, readable by its owner only, found by the local command by itself."""

import contextlib
import hmac
import os
import secrets

from poise.config import Home
from poise.errors import Denied, InputError
from poise.model.messages import Attempt

TOKEN_BYTES = 32


def ensure_home(home: Home) -> None:
    """Make the home if there is none, for its owner only. One that is there is left as it is."""
    try:
        home.root.parent.mkdir(parents=True, exist_ok=True)
        home.root.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the home cannot be made: {error.strerror}",
            field=str(home.root),
            hint="set POISE_HOME to a folder of your own",
        ) from None


def ensure_token(home: Home) -> str:
    """The home's token, made now if there is none. Nobody sees half of it, and others never may read it."""
    ensure_home(home)
    if not home.token.exists():
        draft = home.root / f"token.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(TOKEN_BYTES))
            with contextlib.suppress(FileExistsError):  # somebody else was first: theirs holds
                os.link(draft, home.token)
        except OSError as error:
            raise InputError(
                f"no token can be made: {error.strerror}", field=str(home.token), hint="`df -h`, `ls -ld`"
            ) from None
        finally:
            draft.unlink(missing_ok=True)
    return read_token(home)


def read_token(home: Home) -> str:
    """The home's token. Raises `Denied` when it cannot be read or others may read it."""
    try:
        mode = home.token.stat().st_mode
        token = home.token.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise Denied("this home has no token yet", field=str(home.token), hint="`poise up` makes one") from None
    except PermissionError:
        raise Denied("the token belongs to somebody else", field=str(home.token), hint="set POISE_HOME") from None
    except UnicodeDecodeError:
        raise Denied("the token is damaged", field=str(home.token), hint=f"rm {home.token}, then `poise up`") from None
    if mode & 0o077:
        raise Denied("others may read the token", field=str(home.token), hint=f"chmod 600 {home.token}")
    if not token:
        raise Denied("the token file is empty", field=str(home.token), hint=f"rm {home.token}, then `poise up`")
    return token


def worker_key(token: str, attempt: Attempt) -> str:
    """What lets one attempt that serves calls speak for itself, and for nobody else, until it is over."""
    return hmac.new(token.encode(), f"worker {attempt}".encode(), "sha256").hexdigest()


def same_token(given: str, token: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(given.encode(), token.encode())
