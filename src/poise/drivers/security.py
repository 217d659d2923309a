"""The token of a home: made at first start, readable by its owner only, found by the local command by itself."""

import hmac
import os
import secrets

from poise.config import Home
from poise.errors import Denied

TOKEN_BYTES = 32


def ensure_token(home: Home) -> str:
    """The home's token, made now if there is none. The file is never readable by others, not even for a moment."""
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(home.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(home)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    with os.fdopen(handle, "w") as file:
        file.write(token)
    return token


def read_token(home: Home) -> str:
    """The home's token. Raises `Denied` when it cannot be read or others may read it."""
    try:
        mode = home.token.stat().st_mode
        token = home.token.read_text().strip()
    except FileNotFoundError:
        raise Denied("this home has no token yet", field=str(home.token), hint="`poise up` makes one") from None
    except PermissionError:
        raise Denied("the token belongs to somebody else", field=str(home.token), hint="set POISE_HOME") from None
    if mode & 0o077:
        raise Denied("others may read the token", field=str(home.token), hint=f"chmod 600 {home.token}")
    if not token:
        raise Denied("the token file is empty", field=str(home.token), hint=f"rm {home.token}, then `poise up`")
    return token


def same_token(given: str, token: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(given.encode(), token.encode())
