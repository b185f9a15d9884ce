"""The pages name what there is: every key with its default, every data set, interface, model and method."""

import inspect
import json
import re
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedsocket_flwr.config import Configuration, TaskSettings
from fedsocket_flwr.configuration_file import parse_yaml, shipped_configurations
from fedsocket_flwr.datasets.catalogue import CATALOGUE, read_corpus
from fedsocket_flwr.datasets.interfaces import EXTRACTORS, PRECOMPUTED
from fedsocket_flwr.experiments.sweep_file import Branch, Contrast, Ensemble, Side, SweepSettings, read_sweep
from fedsocket_flwr.import_paths import load
from fedsocket_flwr.methods import METHODS
from fedsocket_flwr.models.registry import PRIVATE_MODELS
from fedsocket_flwr.strict_yaml import dump_value

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIGURATION = (DOCS / "configuration.md").read_text(encoding="utf-8")
DATA = (DOCS / "data.md").read_text(encoding="utf-8")
HEADING = re.compile(r"^#{2,3} +(.+)$", re.MULTILINE)
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \| (.+?) \| .*\|$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+\.\w+)(?:#[^)]*)?\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
YAML = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def sections_of(page: str) -> dict[str, dict[str, str]]:
    """Return heading -> key -> default, of the tables with four columns."""
    parts = HEADING.split(page)
    return {
        heading.replace("`", ""): {key: default for key, _, default in ROW.findall(text)}
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def models_of(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the path of every section of the schema, with ``*`` for the keys of a mapping and ``[]`` for entries."""
    yield path, model
    for name, field in model.model_fields.items():
        for suffix, inner in _models_in(field.annotation):
            yield from models_of(inner, f"{path}.{name}{suffix}".removeprefix("."))


def _models_in(annotation: Any, suffix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield suffix, annotation
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _models_in(part, suffix)
    elif get_origin(annotation) is dict:
        yield from _models_in(get_args(annotation)[1], f"{suffix}.*")
    elif get_origin(annotation) is tuple:
        yield from _models_in(get_args(annotation)[0], f"{suffix}[]")


def default_of(field: FieldInfo) -> str:
    """Return a default as the pages write it."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return "section"
    return f"`{dump_value(list(default) if isinstance(default, tuple) else default)}`"


SECTIONS = sections_of(CONFIGURATION)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        *models_of(Configuration),
        ("sweep", SweepSettings),
        ("sweep.ensembles.*", Ensemble),
        ("sweep.ensembles.*.first, sweep.ensembles.*.second", Branch),
        ("sweep.contrasts[]", Contrast),
        ("sweep.contrasts[].minuend, sweep.contrasts[].subtrahend", Side),
    ],
)
def test_every_key_is_on_the_page_with_its_default(path: str, model: type[BaseModel]) -> None:
    assert SECTIONS[path or "The file"] == {name: default_of(field) for name, field in model.model_fields.items()}


def test_the_keys_of_flowers_run_configuration() -> None:
    app = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    expected = {key: "empty" if value == "" else f"`{value}`" for key, value in app["config"].items()}
    assert SECTIONS["flwr run . --run-config"] == expected


def test_every_private_model_with_its_arguments() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", CONFIGURATION, re.MULTILINE))
    for name, path in PRIVATE_MODELS.items():
        arguments = list(inspect.signature(load(path, name)).parameters.values())[1:]
        assert name in rows, f"docs/configuration.md lacks the private model {name}"
        for argument in arguments:
            default = f"`{argument.default}`" if isinstance(argument.default, str) else json.dumps(argument.default)
            assert re.search(rf"`{argument.name}` \({default}[),]", rows[name]), f"{name}: {argument.name} ({default})"


def test_every_method() -> None:
    row = next(line for line in CONFIGURATION.splitlines() if line.startswith("| `method` | text | `fedsocket`"))
    assert set(METHODS) <= set(re.findall(r"`(\w+)`", row))


def test_every_data_set_and_interface() -> None:
    named = set(re.findall(r"^\| `(\w+)` ", DATA, re.MULTILINE))
    assert set(CATALOGUE) <= named
    assert {*EXTRACTORS, PRECOMPUTED} <= named


@pytest.mark.parametrize("kind", EXTRACTORS)
def test_every_option_of_an_interface(kind: str) -> None:
    documented = load(EXTRACTORS[kind], kind).__doc__.partition("Options: ")[2]
    options = re.findall(r"``([a-z_]+)``[^`]*?\(", documented)
    row = next(line for line in DATA.splitlines() if line.startswith(f"| `{kind}` "))
    assert set(options) <= set(re.findall(r"`(\w+)`", row))


def test_what_the_pages_show_as_yaml_can_be_read(tmp_path: Path) -> None:
    for page in (CONFIGURATION, DATA):
        for number, block in enumerate(YAML.findall(page)):
            assert parse_yaml(block, f"block {number}")


def test_the_sweep_on_the_page_is_one(tmp_path: Path) -> None:
    block = next(block for block in YAML.findall(CONFIGURATION) if "contrasts:" in block)
    path = tmp_path / "sweep.yaml"
    path.write_text(block, encoding="utf-8")
    plan, members = read_sweep(path)
    assert (len(members), len(plan.contrasts)) == (2 * 2 * 3, 2)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_shipped_configurations_are_named() -> None:
    assert {"demo", "toy"} <= set(shipped_configurations())


def task_on_the_page(dataset: str, folder: Path) -> TaskSettings:
    block = next(block for block in YAML.findall(DATA) if f"dataset: {dataset}" in block)
    (settings,) = parse_yaml(block, "data.md")["tasks"].values()
    settings["path"] = str(folder / settings["path"])
    return TaskSettings.model_validate({**settings, "clients": [{"name": "a", "model": "text_bag"}]})


def test_the_table_on_the_page_reads_what_it_says(tmp_path: Path) -> None:
    lines = ["folder,subject,body,owner,split", "work,hello,see you,ann,train", "spam,buy,now,bob,test"]
    (tmp_path / "mail.csv").write_text("\n".join(lines), encoding="utf-8")
    corpus = read_corpus(task_on_the_page("table", tmp_path))
    assert corpus.raw["text"] == ["hello see you", "buy now"]
    assert (corpus.classes, corpus.columns, corpus.part) == (("spam", "work"), {"owner": ["ann", "bob"]}, ["train", "test"])


def test_the_captions_on_the_page_are_read_as_it_says(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "holiday").mkdir()
    for name in ("sea.png", "hill.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / "holiday" / name)
    captions = "file,caption\nsea.png,the sea\nsea.png,waves\nhill.png,a hill\n"
    (tmp_path / "holiday" / "captions.csv").write_text(captions, encoding="utf-8")
    corpus = read_corpus(task_on_the_page("image_captions", tmp_path))
    assert corpus.raw["text"] == ["a hill", "the sea", "waves"]
    assert corpus.pairs is not None
    assert corpus.pairs.tolist() == [[0, 0], [1, 1], [1, 2]]
