"""Finds drivers of substrates by name: `poise up --on NAME[:ARGUMENT]`.

Installed packages offer them as entry points; Poise's own are in its `pyproject.toml`:

    poise.substrates   a module, or an object, that is a `ports.SubstrateDriver`

The code of a driver is loaded only when its name is given.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from poise.config import Cluster, Home
from poise.errors import InputError, PoiseError
from poise.model.document import near
from poise.model.reports.nodes import Check
from poise.model.spec import Compiled
from poise.ports import Handed, SubstrateDriver

GROUP = "poise.substrates"
METHODS = ("check", "is_local", "connect")

_GUIDE = "`docs/how-to/write-a-substrate.md` shows one that works"


def driver_of(name: str) -> SubstrateDriver:
    """Return the driver of this name. Raises `InputError` if there is none, or it cannot be loaded."""
    points = {point.name: point for point in metadata.entry_points(group=GROUP)}
    known = sorted(points)
    if name not in points:
        raise InputError(
            f"there is no substrate `{name}`",
            field="--on",
            have=name,
            need=", ".join(known),
            hint=near(name, known) or f"install the package that brings `{name}`",
        )
    point = points[name]
    source = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unnamed package"
    try:
        problem = _problem_of(name, driver := point.load())
    except Exception as error:  # importing a plug-in may raise anything
        problem = f"it cannot be imported: {type(error).__name__}: {error}"
    if problem:
        what = f"the substrate `{name}` of {source} cannot be used: {problem}"
        raise InputError(what, field="--on", have=f"{GROUP}: {point.name} = {point.value}", hint=_GUIDE)
    return cast(SubstrateDriver, driver)


def grows(driver: SubstrateDriver, argument: str) -> bool:
    """Return whether a substrate gets machines on request. Only drivers with a method `grows` do."""
    return _says(driver, "grows", argument)


def is_alone(driver: SubstrateDriver, argument: str) -> bool:
    """Return whether the nodes of a substrate cannot run all kinds of work, so that they cannot be combined with
    others. Only drivers with a method `is_alone` have such nodes.
    """
    return _says(driver, "is_alone", argument)


def _says(driver: SubstrateDriver, name: str, argument: str) -> bool:
    answer: Callable[[str], bool] | None = getattr(driver, name, None)
    return answer is not None and answer(argument)


def examined(driver: SubstrateDriver, on: str, argument: str, folder: Path) -> Iterator[Check]:
    """Yield checks, for `poise doctor`, of whether a substrate can be used from here. A driver with a method `examine`
    adds its own checks.
    """
    try:
        driver.check(argument)
    except PoiseError as error:
        yield Check(on, "fail", f"{error}: {error.record.have}".rstrip(": "), error.record.hint)
        return
    examine = getattr(driver, "examine", None)
    if examine is None:
        yield Check(on, "ok", "can be used from here")
        return
    yield from examine(argument, str(folder))


def job_of(cluster: Cluster, name: str) -> str:
    """Return the name of the job that contains this object of a cluster, such as a Pod; empty if there is none. Only
    drivers with a method `job_of` have such objects.
    """
    find: Callable[[str, str], str] | None = getattr(driver_of(cluster.driver), "job_of", None)
    return find(cluster.address, name) if find is not None else ""


HandOver = Callable[[Mapping[str, Any], Compiled, str], Handed]


def handing_of(name: str) -> HandOver:
    """Return the function that hands one job over to a substrate. It takes the job file, the compiled job, and the text
    of the script. Raises `InputError` if the substrate cannot be used from here, or accepts no jobs.
    """
    driver = driver_of(name)
    driver.check("")
    hand_over: HandOver | None = getattr(driver, "hand_over", None)
    if hand_over is None:
        raise InputError(f"`{name}` takes no jobs", field="--via", have=name, hint=f"`poise up --on {name}`")
    return hand_over


def _problem_of(name: str, driver: Any) -> str:
    missing = [method for method in METHODS if not callable(getattr(driver, method, None))]
    if missing:
        return f"it has no {', '.join(missing)}"
    return "a home has a file of that name" if hasattr(Home, name) else ""
