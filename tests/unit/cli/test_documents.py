"""Folders of models: `poise serve models/`, `poise service apply models/`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from poise.errors import InputError, SpecError
from poise.model.scaling import Announced
from poise.model.servicefile import DeclaredService, compile_service
from poise.units import HOUR, SECOND
from poise_serve.cli.documents import Source, all_of, at_its_place, models_in, of_file, readers
from poise_serve.cli.serve import declared_of

MODEL = "class Model:\n    def predict(self, batch):\n        return batch\n"


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def read(*targets: object, **own: Any) -> list[Source]:
    return [one for found in all_of(readers([str(one) for one in targets], own)) for one in found]


def declared(*targets: object) -> list[DeclaredService]:
    made = [at_its_place(one, declared_of) for one in read(*targets)]
    return [one for one in made if isinstance(one, DeclaredService)]


def versioned(folder: Path, config: str = "", *versions: str) -> Path:
    """A model whose versions have a `model.py` each."""
    written(folder, config_yaml=config)
    for version in versions or ("1", "2", "10"):
        written(folder / version, model_py=MODEL)
    return folder


def served(*targets: object) -> list[tuple[str, str, str, str]]:
    return [(one.name, one.version_of, one.version, Path(one.folder).name) for one in declared(*targets)]


def test_a_folder_is_a_model_or_holds_models(tmp_path: Path) -> None:
    for name, text in (("a", ""), ("b", "name: other\nbatch: 8\n")):
        written(tmp_path / name, config_yaml=text, model_py=MODEL)
    (tmp_path / "notes").mkdir()
    assert [(one.name, one.model, one.folder) for one in declared(tmp_path)] == [
        ("a", "model.py:Model", str(tmp_path / "a")),
        ("other", "model.py:Model", str(tmp_path / "b")),
    ]
    assert declared(tmp_path / "a") == declared(tmp_path / "a" / "config.yaml") == declared(tmp_path)[:1]
    assert read("app.py:Model")[0].document["name"] == "app"


def test_the_newest_version_has_the_name_of_the_model(tmp_path: Path) -> None:
    model = versioned(tmp_path / "m")
    assert served(model) == [("m", "", "10", "10")]
    written(model, config_yaml="version_policy: {latest: 2}")
    assert served(model) == [("m", "", "10", "10"), ("m.2", "m", "2", "2")]
    written(model, config_yaml="version_policy: all")
    assert [name for name, *_ in served(model)] == ["m", "m.2", "m.1"]
    written(model, config_yaml="version_policy: [1, 2]\nname: other")
    assert served(model) == [("other", "", "2", "2"), ("other.1", "other", "1", "1")]


def test_versions_may_share_the_code_above_them(tmp_path: Path) -> None:
    model = written(tmp_path / "m", config_yaml="model: net.py:Net\nversion_policy: all", net_py="class Net: ...\n")
    written(model / "1", weights_bin="1")
    written(model / "2", net_py="class Net: ...\n")
    assert [(one.model, Path(one.folder).name) for one in declared(model)] == [
        ("net.py:Net", "2"),
        ("../net.py:Net", "1"),
    ]


def test_a_version_on_trial_is_no_other_one(tmp_path: Path) -> None:
    model = versioned(tmp_path / "m", "version_policy: all\ncanary: {version: 10, shadow: 10%}\nopenai: embeddings")
    newest, older = declared(model)
    assert newest.canary is not None
    assert (newest.version, newest.canary.version, Path(newest.canary.folder).name) == ("2", "10", "10")
    assert (older.name, older.canary, older.openai) == ("m.1", None, "")


@pytest.mark.parametrize(
    ("config", "files", "said", "field"),
    [
        ("", {}, "there is no model.py", "m"),
        ("model: net.py:Net", {"model_py": MODEL}, "there is no net.py", "m"),
        ("model: model.py:Net", {"model_py": MODEL}, "there is no class `Net`", "model.py"),
        ("", {"model_py": "class Model\n"}, "the model cannot be read: expected ':'", "model.py"),
        ("", {"model_py": MODEL, "config_yml": ""}, "a model has two configurations", "m"),
        (None, {"model_py": MODEL, "config_json": "{}"}, "the configuration is named config.yaml", "m"),
        (None, {"model_py": MODEL}, "there is no config.yaml", "m"),
        ("", {"v2__model_py": MODEL}, "the name of a version is a number", "v2"),
        ("", {"1__model_py": MODEL, "02__weights": ""}, "the name of a version is a number", "02"),
        ("version_policy: all", {"model_py": MODEL}, "there are no versions", "version_policy"),
        ("version_policy: [3]", {"1__model_py": MODEL}, "there is no version 3", "version_policy"),
        ("version_policy: {latest: 0}", {"1__model_py": MODEL}, "this policy cannot be read", "version_policy"),
        ("version_policy: newest", {"1__model_py": MODEL}, "this policy cannot be read", "version_policy"),
        ("canary: {version: 3}", {"1__model_py": MODEL, "2__model_py": MODEL}, "has a folder", "canary.version"),
        ("canary: {version: 1}", {"1__model_py": MODEL}, "another version beside it", "canary.version"),
        ("version: 3", {"1__model_py": MODEL}, "`version` is that of a version", "version"),
        ("bach: 3", {"model_py": MODEL}, "there is no field `bach`", "bach"),
    ],
)
def test_a_mistake_in_a_folder_is_told(
    tmp_path: Path, config: str | None, files: dict[str, str], said: str, field: str
) -> None:
    written(tmp_path / "m", **files, **({} if config is None else {"config_yaml": config}))
    written(tmp_path / "well", config_yaml="", model_py=MODEL)
    with pytest.raises(SpecError) as raised:
        declared(tmp_path)
    record = raised.value.record
    assert said in record.message and Path(record.field).name == field and (record.hint or record.have)
    assert isinstance(models_in([str(tmp_path)], {})["well"], list), "the other one can be read"


def test_the_mistakes_of_all_folders_are_told_at_once(tmp_path: Path) -> None:
    written(tmp_path / "a", config_yaml="")
    written(tmp_path / "b", config_yaml="version_policy: all", model_py=MODEL)
    with pytest.raises(SpecError) as raised:
        read(tmp_path)
    assert [one.message for one in raised.value.record.all()] == [
        "there is no model.py",
        "there are no versions in the folder",
    ]


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model") as error:
        read(tmp_path)
    assert "config.yaml" in error.value.record.need


def test_the_calendar_of_a_service_becomes_announced_load(tmp_path: Path) -> None:
    """Relative to the file of the service, and only what concerns it. A wrong one is refused with its place."""
    begins = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    when = f"from: '{begins:%Y-%m-%dT%H:%M:%S}', for: 3h"
    calendar, service = tmp_path / "c.yaml", tmp_path / "chat.yaml"
    events = [f"{{{when}, name: launch, service: chat, load: x3}}", f"{{{when}, service: image, load: x2}}"]
    events += [f"{{{when}, service: chat, rate: 40}}", f"{{{when}, as: monday}}"]
    calendar.write_text("kind: calendar\nevents:\n" + "".join(f"  - {event}\n" for event in events))
    service.write_text(
        "kind: service\nname: chat\nmodel: app.py:Model\nreplicas: 1..8\n"
        "scaling: {calendar: c.yaml, announced: [{at: '2026-12-01T12:00:00Z', rate: 5}]}\n"
    )
    [source] = of_file(service, {})
    made = compile_service(source.document)
    at = round(begins.timestamp()) * SECOND
    assert made.announced[0].rate == 5
    launch, rate, day = made.announced[1:]
    assert launch == Announced(at, 0.0, at + 3 * HOUR, 3.0, 0, "launch")
    assert (rate.rate, rate.times, rate.days) == (40.0, 1.0, 0)
    assert day.days == begins.weekday(), "so many days after a Monday"
    calendar.write_text("kind: calendar\nevents: [{from: soon, load: x3}]\n")
    with pytest.raises(SpecError) as error:
        of_file(service, {})
    assert (error.value.record.field, error.value.record.at) == ("events[0].from", f"{calendar}:2:11")
