"""Reads the arguments of `poise serve` and `poise service apply`: classes, files, and folders of models.

    models/
      twice/config.yaml     fields of a service file, all optional, and `version_policy`
      twice/model.py        with the class `Model`
      story/config.yaml
      story/model.py
      story/1/              a folder for each version: with a `model.py` of its own, or other files for the one above
      story/2/model.py

The newest version that is served has the name of the model. Each other one is a service `NAME.VERSION`.
"""

import ast
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from poise.cli.asking import merged
from poise.cli.secrets import absolute
from poise.cli.submit import fill_in
from poise.drivers.calendars import with_calendar
from poise.drivers.yamlfile import is_kind, load_kind, place_in_file
from poise.errors import InputError, PoiseError, SpecError, located, together
from poise.model.servicefile import compile_service, served_versions
from poise.model.serving_upstreams import compile_upstreams
from poise_serve.model.changes import Document

CONFIG = "config.yaml"
MODEL = "model.py"

MISNAMED = ("config.yml", "config.json")
"""Names of files that look like the configuration of a model, and are not read."""

OF_DEFAULT = ("canary", "record", "openai")
"""Fields that apply only to the default version of a model."""

_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_LIKE_A_VERSION = re.compile(r"v?[0-9]")

T = TypeVar("T")


class Source(NamedTuple):
    """A document, and its file; None for that of a class."""

    file: Path | None
    document: Document


Reader = Callable[[], list[Source]]
"""Reads the documents of a file or of a model's folder. Raises `SpecError`."""


def readers(targets: Sequence[str], own: Document) -> list[Reader]:
    """Return a reader for each file and each model's folder. `own`: fields that replace those of the files. Raises
    `InputError` if a folder holds no model.
    """
    made: list[Reader] = []
    for target in targets:
        if Path(target).is_dir():
            made += [partial(_of_folder, one, own) for one in folders_in(Path(target))]
        elif is_file(target):
            made.append(partial(of_file, Path(target), own))
        else:
            made.append(partial(_of_class, target, own))
    return made


def all_of(work: Sequence[Callable[[], T]]) -> list[T]:
    """Return all results. Raises all errors together."""
    made, errors = some_of(work)
    raise_together(errors)
    return made


def some_of(work: Sequence[Callable[[], T]]) -> tuple[list[T], list[PoiseError]]:
    """Return the results, and the errors of the others."""
    made: list[T] = []
    errors: list[PoiseError] = []
    for one in work:
        try:
            made.append(one())
        except PoiseError as error:
            errors.append(error)
    return made, errors


def raise_together(errors: Sequence[PoiseError]) -> None:
    """Raise all errors as one, if there are any."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise together([msgspec.structs.replace(one, others=()) for error in errors for one in error.record.all()])


def at_its_place(source: Source, work: Callable[[Document], T]) -> T:
    """Return what `work` makes of a document. Errors have their places in its file."""
    if source.file is None:
        return work(source.document)
    with located(place_in_file(source.file)):
        return work(source.document)


def is_file(target: str) -> bool:
    """Whether a target is a file rather than a class."""
    return target.endswith((".yaml", ".yml", ".json"))


def folders_in(target: Path) -> list[Path]:
    """Return the folders of models in a folder: itself, or those in it. Raises `InputError` if there is none."""
    found = _folders_in(target)
    if not found:
        need = f"{CONFIG}, or folders with one"
        raise InputError("there is no model in this folder", field=str(target), need=need, hint=f"ls {target}")
    return found


def _folders_in(target: Path) -> list[Path]:
    if _is_model(target):
        return [target]
    return sorted(one for one in target.iterdir() if one.is_dir() and _is_model(one))


def models_in(targets: Sequence[str], own: Document) -> dict[str, list[Document] | PoiseError]:
    """Return the models in those targets that are folders: the documents of each, or its error."""
    made: dict[str, list[Document] | PoiseError] = {}
    for folder in [one for target in targets if Path(target).is_dir() for one in _folders_in(Path(target))]:
        try:
            documents = [one.document for one in _of_folder(folder, own)]
        except PoiseError as error:
            made[folder.resolve().name] = error
        else:
            made[documents[0]["name"]] = documents
    return made


# --- files and classes -----------------------------------------------------------------------------------------------


def _of_class(target: str, own: Document) -> list[Source]:
    place, _, _ = target.partition(":")
    name = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return [Source(None, {"kind": "service", "name": name, "model": target} | own)]


def of_file(path: Path, own: Document) -> list[Source]:
    """Return the documents of a file. Raises `SpecError`."""
    with located(place_in_file(path)):
        if is_kind(path, "upstreams"):
            document = load_kind(path, "upstreams")
            compile_upstreams(document)
            return [Source(path, dict(document))]
        if path.name == CONFIG:
            return _of_folder(path.parent, own)
        return [Source(path, _complete(_loaded(path), own, path.resolve().parent))]


def _loaded(path: Path) -> Document:
    document = load_kind(path, "service")
    if not isinstance(document, dict):
        compile_service(document)  # raises what is wrong with it
    return dict(document)


def _complete(document: Document, own: Document, folder: Path) -> Document:
    """Return a document with the fields of `own` in place of its own, absolute paths, and values of its variables."""
    made = absolute(with_calendar(merged(document, own), folder, time.time()), folder)
    fill_in(made.get("env"), dict(os.environ))
    made["folder"] = str((folder / str(made.get("folder") or ".")).resolve())
    for block, field in (("canary", "folder"), ("canary", "replay"), ("record", "file")):
        told = made.get(block)
        if isinstance(told, dict) and isinstance(told.get(field), str) and told[field]:
            told[field] = str((folder / told[field]).resolve())
    if isinstance(made.get("canary"), dict):
        fill_in(made["canary"].get("env"), dict(os.environ))
    return made


# --- folders of models -----------------------------------------------------------------------------------------------


def _is_model(folder: Path) -> bool:
    """Whether a folder is that of a model, perhaps with mistakes in it."""
    if folder.name.startswith((".", "__")):
        return False
    return any((folder / name).is_file() for name in (CONFIG, MODEL, *MISNAMED)) or any(folder.glob(f"[0-9]*/{MODEL}"))


def _of_folder(folder: Path, own: Document) -> list[Source]:
    """Return the documents of a model, one for each version that is served; first that of the default version."""
    file = folder / CONFIG
    if found := next((name for name in MISNAMED if (folder / name).is_file()), ""):
        what = "a model has two configurations" if file.is_file() else f"the configuration is named {CONFIG}"
        hint = f"rm {folder / found}" if file.is_file() else f"mv {folder / found} {file}"
        raise SpecError(what, field=str(folder), need=CONFIG, have=found, hint=hint)
    if not file.is_file():
        raise SpecError(f"there is no {CONFIG}", field=str(folder), need=CONFIG, hint=f"touch {file}")
    with located(place_in_file(file)):
        document = {} if load_kind(file, "service") is None else _loaded(file)
        has_policy = "version_policy" in document
        policy = document.pop("version_policy", {"latest": 1})
        named = {"kind": "service", "name": folder.resolve().name, "model": f"{MODEL}:Model"}
        made = _complete(named | document, own, folder.resolve())
        versions = _versions(folder, str(made["model"]).partition(":")[0])
        if not versions:
            if has_policy:
                what = "there are no versions in the folder"
                raise SpecError(what, field="version_policy", hint=f"mkdir {folder / '1'}")
            return [Source(file, made | {"model": _found(str(made["model"]), Path(made["folder"]))})]
        for field in ("folder", "version"):
            if field in document:
                what = f"`{field}` is that of a version here, and each version has a folder of its own"
                have = ", ".join(map(str, sorted(versions)))
                raise SpecError(what, field=field, have=have, hint=f"drop `{field}`")
        return [Source(file, one) for one in _of_versions(made, policy, versions)]


def _versions(folder: Path, file: str) -> dict[int, Path]:
    """Return the folders of a model's versions. `file`: the name of its Python file. Raises `SpecError` for a folder
    that seems to be a version, and has another name.
    """
    within = [one for one in sorted(folder.iterdir()) if one.is_dir()]
    found = {int(one.name): one.resolve() for one in within if _VERSION.fullmatch(one.name)}
    for one in within:
        if found:
            is_meant = _LIKE_A_VERSION.match(one.name) is not None
        else:
            is_meant = (one / file).is_file() and not (folder / file).is_file()
        if is_meant and not _VERSION.fullmatch(one.name):
            raise SpecError(
                "the name of a version is a number",
                field=str(one),
                need="1, 2, 3 and so on",
                have=one.name,
                hint=f"mv {one} {folder / str(max(found, default=0) + 1)}",
            )
    return found


def _of_versions(made: Document, policy: Any, versions: Mapping[int, Path]) -> list[Document]:
    """Return the documents of the versions that are served. A version on trial is that of `canary` only."""
    canary = made.get("canary")
    if isinstance(canary, dict) and "version" in canary and not canary.get("folder"):
        trial = next((version for version in versions if str(version) == str(canary["version"])), 0)
        others = {version: of for version, of in versions.items() if version != trial}
        if not trial or not others:
            have = ", ".join(map(str, sorted(versions)))
            what = "a version on trial has a folder, and another version beside it"
            raise SpecError(what, code="E105", field="canary.version", need="another number", have=have)
        made = made | {"canary": canary | _at(versions[trial], str(canary.get("model") or made["model"]))}
        versions = others
    first, *rest = [
        made | {"version": str(version)} | _at(versions[version], str(made["model"]))
        for version in served_versions(policy, versions)
    ]
    return [first, *(_beside(one) for one in rest)]


def _beside(document: Document) -> Document:
    """Return the document of a version that is not the default one."""
    name = document["name"]
    made = {field: value for field, value in document.items() if field not in OF_DEFAULT}
    return made | {"name": f"{name}.{document['version']}", "version_of": name}


def _at(folder: Path, model: str) -> Document:
    return {"folder": str(folder), "model": _found(model, folder, folder.parent)}


def _found(model: str, folder: Path, above: Path | None = None) -> str:
    """Return a model's class as seen from its folder: the file is there, or in the folder above. Raises `SpecError` if
    it is in neither, or has no such class.
    """
    file, _, name = model.partition(":")
    if not file.endswith(".py"):
        return model
    for place, prefix in ((folder, ""), (above, "../")):
        if place is not None and (place / file).is_file():
            _check_class(place / file, name)
            return f"{prefix}{file}:{name}"
    raise SpecError(
        f"there is no {file}", field=str(folder), need=f"{file} with the class `{name}`", hint=f"ls {folder}"
    )


def _check_class(file: Path, name: str) -> None:
    """Raise `SpecError` if a file is not Python, or has no such class. It is not run."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, OSError) as error:
        raise SpecError(f"the model cannot be read: {error}", field=str(file), hint=f"python {file}") from None
    known = {one.name for one in ast.walk(tree) if isinstance(one, ast.ClassDef | ast.FunctionDef)}
    known |= {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    known |= {one.asname or one.name for one in ast.walk(tree) if isinstance(one, ast.alias)}
    if name not in known and "*" not in known:
        classes = [one.name for one in tree.body if isinstance(one, ast.ClassDef)]
        have = ", ".join(classes) or "no class"
        raise SpecError(f"there is no class `{name}`", field=str(file), have=have, hint=f"class {name}: ...")


__all__ = [
    "CONFIG",
    "Reader",
    "Source",
    "all_of",
    "at_its_place",
    "folders_in",
    "is_file",
    "models_in",
    "of_file",
    "raise_together",
    "readers",
    "some_of",
]
