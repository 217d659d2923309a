"""Loads nemeses, built in or from files, and the scenarios kept from seeds that once failed."""

from pathlib import Path

import msgspec

from poise.decoding import json_decoder
from poise.drivers.yamlfile import load_yaml, place_in_file
from poise.engine.scenario import Nemesis, Scenario, check_scenario, compile_nemesis
from poise.errors import NotFound, SpecError, located
from poise.model.document import near

SHIPPED = Path(__file__).parent.parent / "engine" / "nemeses"


def shipped() -> dict[str, Nemesis]:
    """Return all built-in nemeses, by name."""
    return {path.stem: read_nemesis(path) for path in sorted(SHIPPED.glob("*.yaml"))}


def known_nemeses(asked: tuple[str, ...], option: str) -> dict[str, Nemesis]:
    """Return the nemeses with these names or files, or all built-in ones. Raises NotFound, which names the option, and
    SpecError.
    """
    known = shipped()
    if not asked:
        return known
    found: dict[str, Nemesis] = {}
    for name in asked:
        if name in known:
            found[name] = known[name]
        elif name.endswith((".yaml", ".yml")):
            nemesis = read_nemesis(Path(name))
            found[nemesis.name] = nemesis
        else:
            hint = near(name, known) or f"known: {', '.join(known)}; or a file such as `nemesis.yaml`"
            raise NotFound(f"there is no nemesis `{name}`", field=option, have=name, hint=hint)
    return found


def read_nemesis(path: Path) -> Nemesis:
    """Read a file of kind `nemesis`. Raises SpecError with all of its errors."""
    document = load_yaml(path)
    with located(place_in_file(path)):
        return compile_nemesis(document)


def read_scenario(path: Path) -> Scenario:
    """Read a stored scenario. Raises NotFound and SpecError."""
    try:
        scenario = json_decoder(Scenario).decode(path.read_bytes())
    except FileNotFoundError:
        raise NotFound("this scenario does not exist", field="--scenario", have=str(path)) from None
    except OSError as error:
        raise SpecError("the scenario cannot be read", field=str(path), have=str(error)) from None
    except msgspec.MsgspecError as error:
        raise SpecError(
            f"this is not a scenario: {error}", field=str(path), hint="use a file that `poise faults --keep` wrote"
        ) from None
    with located(place_in_file(path)):
        check_scenario(scenario)
    return scenario


def keep_scenario(scenario: Scenario, folder: Path, name: str) -> Path:
    """Store a scenario as a regression test."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(scenario), indent=1) + b"\n")
    return path
