"""How a function is sent: by its importable name, with the hash of its source; by value only if it has no such name."""

import contextlib
import hashlib
import importlib
import inspect
import runpy
import sys
import textwrap
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from poise.drivers import values
from poise.errors import CallFailed
from poise.model.calls import Function, Value


def reference(function: Callable[..., Any], folder: Path) -> Function:
    """Return a reference by which a worker finds this function. One without an importable name is written to
    `folder`."""
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__qualname__", "")
    if module == values.SCRIPT:  # in a worker that loaded the script itself
        module = "__main__"
    script = values.program() if module == "__main__" else ""
    named = name and "<" not in name and (module != "__main__" or script) and unwrapped(_find(module, name)) is function
    if not named:
        return Function(name or repr(function), code=values.encode(function, folder))
    return Function(name, module, script, getattr(function, "__poise_source__", None) or source_of(function))


def load(told: Function) -> Callable[..., Any]:
    """Return the function. Raises CallFailed if it cannot be found, or if its source differs."""
    if told.code.encoding:
        function: Callable[..., Any] = values.decode(told.code)
        return function
    try:
        if told.script:
            load_script(told.script)
        else:
            importlib.import_module(told.module)
    except BaseException as error:
        where = told.script or told.module
        raise CallFailed(
            f"`{told.name}` cannot be loaded: importing {where} fails in the worker",
            have="".join(traceback.format_exception_only(error)).strip(),
            hint='put the actions of a script under `if __name__ == "__main__":`',
        ) from error
    found = unwrapped(_find("__main__" if told.script else told.module, told.name))
    if found is None:
        raise CallFailed(
            f"`{told.name}` is not in {told.script or told.module}", hint="define it at the top level of its module"
        )
    if told.source and source_of(found) != told.source:
        raise CallFailed(
            f"`{told.name}` has changed since the caller loaded it",
            field=told.script or told.module,
            hint="run the caller again",
        )
    return found  # type: ignore[no-any-return]


loading: list[str] = []
"""The script that this process is loading; calls submitted meanwhile would load it again, recursively."""


def load_script(path: str) -> None:
    """Run a program as a module other than `__main__`, so that it only defines; unpickling finds it as `__main__`."""
    if getattr(sys.modules["__main__"], "__poise_script__", "") != path:
        module = types.ModuleType(values.SCRIPT)
        loading.append(path)
        run = runpy.run_module if path.startswith(values.MODULE) else runpy.run_path
        module.__dict__.update(run(path.removeprefix(values.MODULE), run_name=values.SCRIPT))
        module.__dict__["__poise_script__"] = path
        loading.clear()
        sys.modules[values.SCRIPT] = sys.modules["__main__"] = module


def source_of(function: Any) -> str:
    """Return a hash of its source, or "" if that is not available."""
    with contextlib.suppress(OSError, TypeError, SyntaxError):
        text = textwrap.dedent(inspect.getsource(function))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
    return ""


def unwrapped(found: Any) -> Any:
    """Return the function behind a name, because `poise.task` wraps it."""
    return getattr(found, "__poise_function__", found)


def _find(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def encode_failure(error: BaseException, folder: Path) -> Value:
    """Encode an exception with its traceback, starting at the function: `[pickle or None, text, type, message,
    before]`; `before` are the earlier results of a `map` piece.
    """
    inner = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ is not None else None)
    try:
        text = "".join(traceback.format_exception(inner))
    except Exception:  # formatting the exception failed
        text = "".join(traceback.format_tb(inner.__traceback__))
    data = before = None
    if BEFORE in getattr(error, "__dict__", ()):
        with contextlib.suppress(Exception):
            before = values.pickled(error.__dict__.pop(BEFORE))
    if isinstance(error, Exception):
        with contextlib.suppress(Exception):
            data = values.pickled(error)
            values.decode(Value("p", data))  # some can be pickled but not unpickled
    said = [readable(text[-65_536:]), type(error).__qualname__, readable(message_of(error)[:4096])]
    return values.encode([data, *said, before], folder)


BEFORE = "_poise_before"
"""Attribute of an exception: the results of the items before the one that raised it."""


def message_of(error: BaseException) -> str:
    """Return its message; some exceptions raise when they are formatted."""
    try:
        return str(error)
    except Exception:
        return "(it cannot say what it is)"


def readable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "replace").decode()


class _RemoteTraceback(Exception):
    """The traceback in the worker, shown as the cause of the exception raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


def decode_failure(value: Value) -> Exception:
    """Return the user's exception with the worker's traceback as its cause; CallFailed if it cannot be restored."""
    data, text, kind, message, before = values.decode(value)
    error: Exception | None = None
    if data is not None:
        with contextlib.suppress(Exception):
            error = values.decode(Value("p", data))
    if error is None:
        error = CallFailed(f"{kind}: {message}", hint="its traceback is above")
    error.__cause__ = _RemoteTraceback(text)
    if isinstance(error, StopIteration | StopAsyncIteration):  # raised here, it would silently end a loop
        raised, error = error, RuntimeError(f"the function raised {kind}")
        error.__cause__ = raised
    if before is not None:
        with contextlib.suppress(Exception):
            error.__dict__[BEFORE] = values.decode(Value("p", before))
    return error
