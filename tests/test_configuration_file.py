from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import (
    parse_key,
    parse_yaml,
    read_configuration,
    read_with_settings,
    shipped_configurations,
    shipped_sweep,
    shipped_sweeps,
    write_configuration,
)
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.strict_yaml import dump_value, dump_yaml, parse_value

SMALL = """\
run: {name: small, seed: 3}
interfaces:
  image: {kind: pixels}
tasks:
  digits:
    dataset: toy_images
    kind: classification
    modalities: [image]
    clients:
      - {name: a, model: image_cnn}
      - {name: b, model: image_mlp}
training:
  private:
    image: {optimiser: sgd, learning_rate: 0.001}
"""


def read(folder: Path, text: str, *overrides: str) -> Configuration:
    path = folder / "run.yaml"
    path.write_bytes(text.encode())
    return read_configuration(path, overrides)


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(folder, text, *overrides)
    message = str(caught.value)
    assert "Traceback" not in message
    assert "pydantic" not in message
    return message.replace(f"{folder}/", "")


def stored(config: Configuration, folder: Path) -> Configuration:
    """Store and re-read a configuration, which must change nothing."""
    first, second = folder / "first.yaml", folder / "second.yaml"
    write_configuration(config, first)
    again = read_configuration(first)
    write_configuration(again, second)
    assert again == config
    assert first.read_bytes() == second.read_bytes()
    return again


# Numbers with an exponent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["1e-3", "1.0e-3", "0.001", "1E-3", ".1e-2", "+1e-3"])
def test_a_typed_field_takes_every_spelling_of_a_number(tmp_path: Path, spelling: str) -> None:
    config = read(tmp_path, SMALL.replace("learning_rate: 0.001", f"learning_rate: {spelling}"))
    assert config == read(tmp_path, SMALL)
    assert stored(config, tmp_path).training.private["image"].learning_rate == 0.001


@pytest.mark.parametrize("spelling", ["1e-3", "1.0e-3", "0.001"])
def test_a_free_mapping_takes_every_spelling_of_a_number(tmp_path: Path, spelling: str) -> None:
    text = SMALL.replace("model: image_cnn", f"model: image_cnn, arguments: {{rate: {spelling}, deep: [{{x: {spelling}}}]}}")
    arguments = stored(read(tmp_path, text), tmp_path).tasks["digits"].clients[0].arguments
    assert arguments == {"rate": 0.001, "deep": [{"x": 0.001}]}
    assert type(arguments["rate"]) is float


def test_quoted_text_in_a_free_mapping_stays_text(tmp_path: Path) -> None:
    values = """{a: "1e-3", b: '5e-2', c: 2024-01-31, d: "true", e: "12", f: 695e0514, g: ""}"""
    arguments = stored(read(tmp_path, SMALL.replace("image_cnn", f"image_cnn, arguments: {values}")), tmp_path)
    assert arguments.tasks["digits"].clients[0].arguments == {
        "a": "1e-3",
        "b": "5e-2",
        "c": "2024-01-31",
        "d": "true",
        "e": "12",
        "f": "695e0514",
        "g": "",
    }


@pytest.mark.parametrize("override", ["training.q.learning_rate=1e-3", "training.q.learning_rate=0.001"])
def test_an_override_takes_every_spelling_of_a_number(tmp_path: Path, override: str) -> None:
    assert stored(read(tmp_path, SMALL, override), tmp_path).training.q.learning_rate == 0.001


def test_an_override_inside_a_free_mapping_takes_a_number(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL, "tasks.digits.clients[0].arguments.rate=1e-3", "interfaces.image.options={a: 1e1}")
    assert config.tasks["digits"].clients[0].arguments == {"rate": 0.001}
    assert config.interfaces["image"].options == {"a": 10.0}


@pytest.mark.parametrize(
    "name", ["12e7", "695e0514", "1e-3", "0x1F", "1_000", "12:30:45", "null", "2024-01-31", "=", "yes", "é|%_"]
)
def test_a_name_that_looks_like_something_else_stays_a_name(tmp_path: Path, name: str) -> None:
    quoted = name if ("e" in name and name[0].isdigit()) or "-" in name else f'"{name}"'
    config = stored(read(tmp_path, SMALL.replace("name: a,", f"name: {quoted}, natural_id: {quoted},")), tmp_path)
    assert (config.tasks["digits"].clients[0].name, config.tasks["digits"].clients[0].natural_id) == (name, name)


def test_a_name_that_yaml_reads_as_something_else_is_refused_with_the_cure(tmp_path: Path) -> None:
    found = refusal(tmp_path, SMALL.replace("name: a,", "name: no,"))
    assert found == (
        "run.yaml: tasks.digits.clients[0].name: found false, expected text (put numbers, dates and yes/no in quotes)"
    )


# Keys that stand twice, and files that are no configuration --------------------------------------------------------------------


def test_a_section_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    text = SMALL + "# a comment\n" * 40 + "training:\n  warm_up_epochs: 3\n"
    assert refusal(tmp_path, text) == "run.yaml: the key 'training' stands twice, in lines 12 and 55"


def test_a_key_that_stands_twice_in_a_section_is_refused(tmp_path: Path) -> None:
    text = SMALL.replace("run: {name: small, seed: 3}", "run:\n  seed: 1\n  name: small\n  seed: 2")
    assert refusal(tmp_path, text) == "run.yaml: the key 'seed' stands twice, in lines 2 and 4"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty, expected a mapping of sections"),
        ("# only a comment\n", "the file is empty, expected a mapping of sections"),
        ("- run\n- tasks\n", "found a list at the top level, expected a mapping of sections"),
        ("run\n", "found 'run' at the top level, expected a mapping of sections"),
        (SMALL + "---\n" + SMALL, "line 15: a second document begins, expected one document a file"),
        ("run: {name: small\n", "line 2, column 1: while parsing a flow mapping, expected ',' or '}', but got '<stream end>'"),
        ("run: !!python/object:os.system {}\n", "line 1, column 6: could not determine a constructor for the tag"),
        ("run: !!set {a}\n", "line 1, column 6: could not determine a constructor for the tag"),
        ("run: *nowhere\n", "line 1, column 6: found undefined alias 'nowhere'"),
        ("run: &a {x: *a}\n", "line 1: *a stands inside the node that it refers to"),
        ("x: &a [1, [*a]]\n", "line 1: *a stands inside the node that it refers to"),
        ("1: {}\n", "line 1: the key 1 is not text; put it in quotes"),
        ("on: {}\n", "line 1: the key on is not text; put it in quotes"),
        ("[a, b]: {}\n", "line 1: the key a list or mapping is not text; put it in quotes"),
        (
            "run:\n\tname: x\n",
            "line 2, column 1: while scanning for the next token, found character '\\t' that cannot start any token",
        ),
        ("run: {<<: 3}\n", "line 1: << merges a mapping or a list of mappings, found '3'"),
        ("x: " + "[" * 3000, "lists or mappings are nested too deeply"),
        ("run: {name: a\x07b}", "special characters are not allowed"),
        ("run: {seed: " + "9" * 5000 + "}", "Exceeds the limit"),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    found = refusal(tmp_path, text)
    assert said in found
    assert found.startswith("run.yaml: ")
    assert "\n" not in found


def test_a_file_in_another_encoding_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"# one\n# \xe4\nrun: {}\n")
    with pytest.raises(ConfigurationError, match=r"latin\.yaml: line 2: the byte 0xe4 is not UTF-8 text"):
        read_configuration(path)


# Anchors and merges -----------------------------------------------------------------------------------------------------------

ANCHORS = """\
x-image: &img {model: image_cnn, arguments: {width: 4}}
x-other: &other {model: image_mlp, natural_id: "7"}
"""
MERGED = SMALL.replace(
    "      - {name: a, model: image_cnn}\n      - {name: b, model: image_mlp}\n",
    "      - {<<: *img, name: a, arguments: {width: 8}}\n      - {<<: *img, name: b}\n      - {<<: [*img, *other], name: c}\n",
)


def test_anchors_have_a_place_and_merges_are_expanded(tmp_path: Path) -> None:
    config = stored(read(tmp_path, ANCHORS + MERGED), tmp_path)
    clients = config.tasks["digits"].clients
    assert [(c.name, c.model, c.arguments, c.natural_id) for c in clients] == [
        ("a", "image_cnn", {"width": 8}, None),
        ("b", "image_cnn", {"width": 4}, None),
        ("c", "image_cnn", {"width": 4}, "7"),
    ]
    written = (tmp_path / "first.yaml").read_text("utf-8")
    assert not any(sign in written for sign in ("<<", "&", "*", "x-"))


def test_a_merge_of_a_merge_is_no_key_that_stands_twice() -> None:
    text = "x-a: &a {p: 1, q: 1}\nx-b: &b {<<: *a, q: 2}\nrun: {<<: *b, q: 3}\nagain: *b\n"
    assert parse_yaml(text, "t") == {"run": {"p": 1, "q": 3}, "again": {"p": 1, "q": 2}}


def test_a_typo_beside_anchors_is_still_refused(tmp_path: Path) -> None:
    found = refusal(tmp_path, ANCHORS + MERGED.replace("name: b", "nmae: b"))
    assert found.splitlines() == [
        "run.yaml: tasks.digits.clients[1].name: missing, but required",
        "run.yaml: tasks.digits.clients[1].nmae: unknown key 'nmae', did you mean 'name'?",
    ]


def test_an_override_of_one_client_leaves_the_others_of_its_anchor_alone(tmp_path: Path) -> None:
    config = read(tmp_path, ANCHORS + MERGED, "tasks.digits.clients[1].arguments.width=16")
    assert [client.arguments["width"] for client in config.tasks["digits"].clients] == [8, 16, 4]


# Bytes ------------------------------------------------------------------------------------------------------------------------


def test_mark_line_ends_and_foreign_letters_change_nothing(tmp_path: Path) -> None:
    text = SMALL.replace("name: a,", "name: größe–中,")
    plain = read(tmp_path, text)
    other = tmp_path / "bom.yaml"
    other.write_bytes(b"\xef\xbb\xbf" + ("# ä – comment\n" + text).replace("\n", "\r\n").encode())
    assert read_configuration(other) == plain
    assert stored(plain, tmp_path).tasks["digits"].clients[0].name == "größe–中"
    assert "größe–中".encode() in (tmp_path / "first.yaml").read_bytes()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(tmp_path, SMALL)
    target = tmp_path / "config.yaml"
    write_configuration(config, target)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_configuration(read(tmp_path, SMALL, "run.seed=9"), target)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.from_regex(r"[-+]?[0-9]{1,3}(\.[0-9]*)?[eE][-+]?[0-9]{1,4}", fullmatch=True),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(JSON_VALUES)
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_read_back_equal(value: Any) -> None:
    again = parse_value(dump_yaml({"value": value}), "t")["value"]
    assert repr(again) == repr(value)
    assert type(again) is type(value)
    assert parse_value(dump_value(value), "t") == value
    assert "\n" not in dump_value(value)


# Shipped configurations, paths and overrides ------------------------------------------------------------------------------------


def test_shipped_configurations_are_read_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"demo", "toy"} <= set(shipped_configurations())
    for name in shipped_configurations():
        stored(read_configuration(name), tmp_path)


def test_an_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"domo: no such file; configurations that ship with the package: .*demo.*toy"):
        read_configuration("domo")
    with pytest.raises(ConfigurationError, match="no such file"):
        read_configuration("../configs/demo")


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_configuration(tmp_path)


def test_paths_are_relative_to_the_file_and_stored_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    text = SMALL.replace("kind: pixels", "kind: pixels, options: {file: ../w.npy, size: 3}").replace(
        "    dataset:", "    path: ./data\n    partition: {manifest: split.json}\n    dataset:"
    )
    (home / "run.yaml").write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    config = read_configuration("home/run.yaml", ["interfaces.text={kind: glove, options: {file: vectors.txt}}"])
    monkeypatch.chdir(elsewhere)
    assert config.tasks["digits"].path == str(home / "data")
    assert config.tasks["digits"].partition.manifest == str(home / "split.json")
    assert config.interfaces["image"].options == {"file": str(tmp_path / "w.npy"), "size": 3}
    assert config.interfaces["text"].options == {"file": str(tmp_path / "vectors.txt")}
    assert stored(config, elsewhere) == config
    absolute = read_configuration(home / "run.yaml", ["tasks.digits.path=/data"])
    assert absolute.tasks["digits"].path == "/data"
    arguments = "tasks.digits.clients[0].arguments={file: v.npy, index: w.txt, width: 4}"
    monkeypatch.chdir(tmp_path)
    found = read_configuration(home / "run.yaml", [arguments]).tasks["digits"].clients[0].arguments
    assert found == {"file": str(tmp_path / "v.npy"), "index": str(tmp_path / "w.txt"), "width": 4}
    monkeypatch.setenv("HOME", str(home))
    assert read_configuration(home / "run.yaml", ["tasks.digits.path=~/x"]).tasks["digits"].path == str(home / "x")


def test_overrides_take_any_value_at_any_place(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        SMALL,
        "run.seed=202",
        "tasks.digits.clients[1].model=image_resnet",
        "interfaces.image.norm=null",
        "exchange.isolated=[digits]",
        "evaluation.rhos=[0, 1e-1]",
        "run.name=a=b",
        'tasks."digits".partition.kind=all',
    )
    assert config.run.seed == 202
    assert config.tasks["digits"].clients[1].model == "image_resnet"
    assert config.interfaces["image"].norm is None
    assert config.exchange.isolated == ("digits",)
    assert config.evaluation.rhos == (0.0, 0.1)
    assert config.run.name == "a=b"
    assert config.tasks["digits"].partition.kind == "all"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.seed", "--set run.seed: expected key=value"),
        ("=3", "an override has no key"),
        ("run..seed=3", "'run..seed' is not a key path"),
        ("run.seed.=3", "'run.seed.' is not a key path"),
        (".run=3", "'.run' is not a key path"),
        ("[0]=3", "'[0]' is not a key path"),
        ("tasks.digits.clients[-1].model=x", "is not a key path"),
        ("tasks.digits.clients[2].model=x", "tasks.digits.clients is a list of 2, so it has no entry [2]"),
        ("tasks.digits[0]=x", "tasks.digits is no list, so it has no entry [0]"),
        ("tasks.digits.clients.model=x", "tasks.digits.clients is a list, so it has no key 'model'"),
        ("run.seed.x=3", "run.seed is 3, so it has no key 'x'"),
        ("run.seed=[1", "--set run.seed=[1: line 1, column 3: while parsing a flow sequence"),
        ("run.sead=3", "run.yaml: run.sead: unknown key 'sead', did you mean 'seed'?"),
    ],
)
def test_an_override_that_fits_nowhere_is_refused(tmp_path: Path, override: str, said: str) -> None:
    assert said in refusal(tmp_path, SMALL, override)


def test_a_key_path_has_parts() -> None:
    assert parse_key("tasks.digits.clients[2].model") == ("tasks", "digits", "clients", 2, "model")
    assert parse_key('tasks."v1.5".x') == ("tasks", "v1.5", "x")
    assert parse_key("training.private.image+text.epochs") == ("training", "private", "image+text", "epochs")


def test_settings_are_applied_in_order_and_relative_to_their_folder(tmp_path: Path) -> None:
    config = read_with_settings(
        "toy", {"predictor": {"width": 8}, "predictor.residual_rank": 2, "tasks.shapes.path": "d"}, tmp_path
    )
    assert (config.predictor.width, config.predictor.residual_rank) == (8, 2)
    assert config.tasks["shapes"].path == str(tmp_path / "d")


# Messages ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("tasks.digits.clients[1].model=3", "tasks.digits.clients[1].model: found 3, expected text"),
        ("run.seed=-1", "run.seed: found -1, expected at least 0"),
        ("run.seed=99999999999999999999", "run.seed: found 99999999999999999999, expected at most 9223372036854775807"),
        ("run.rounds=1e3", "run.rounds: found '1e3', expected a whole number"),
        ("run.rounds=2.0", "run.rounds: found 2.0, expected a whole number"),
        ("run.name=a/b", "run.name: found 'a/b', expected a name without /"),
        ("exchange.isolated=digits", "exchange.isolated: found 'digits', expected a list or 'all'"),
        ("exchange.isolated=[digits, 3]", "exchange.isolated[1]: found 3, expected text"),
        ("exchange.payload=some", "exchange.payload: found 'some', expected 'owned' or 'full'"),
        ("training.q.learning_rate=true", "training.q.learning_rate: found true, expected a number"),
        ("training.q.momentum=1", "training.q.momentum: found 1, expected less than 1"),
        ("training.q.weight_decay=.nan", "training.q.weight_decay: found nan, expected a finite number"),
        ("evaluation=[]", "evaluation: found [], expected a mapping"),
        ("evaluation=", "evaluation: found nothing, expected a mapping"),
        ("tasks.digits.clients=[]", "tasks.digits.clients: found [], expected at least 1 entry"),
        ("tasks.digits.clients={}", "tasks.digits.clients: found {}, expected a list"),
        ("evaluation.tensorboard=1", "evaluation.tensorboard: found 1, expected true or false"),
        ("tasks.digits.kind=retrieval", "tasks.digits: a retrieval task has the modalities image and text, found ['image']"),
        ("trainin=3", "trainin: unknown key 'trainin', did you mean 'training'?"),
        ("training.private.image.lr=3", "training.private.image.lr: unknown key 'lr', known here: optimiser, learning_rate,"),
        (
            "tasks.digits.clients[0].argument={}",
            "tasks.digits.clients[0].argument: unknown key 'argument', did you mean 'arguments'?",
        ),
        ("interfaces.image.options={x: .inf}", "interfaces.image.options: inf is not a finite number"),
        ("tasks.a/b={}", "tasks.a/b: found 'a/b', expected a name"),
        ("participation.share=1" + "0" * 100, "found 1" + "0" * 59 + "..., expected at most 1"),
    ],
)
def test_a_problem_is_one_line_with_path_value_and_expectation(tmp_path: Path, override: str, said: str) -> None:
    found = refusal(tmp_path, SMALL, override)
    assert (
        any(line.startswith(f"run.yaml: {said.split(':')[0]}") and said in line for line in found.splitlines()) or said in found
    )
    assert all(line.startswith("run.yaml: ") for line in found.splitlines())


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    text = SMALL.replace("seed: 3", "sede: 3").replace("model: image_mlp", "model: [x]").replace("0.001", "fast")
    assert len(refusal(tmp_path, text).splitlines()) == 3


def test_a_configuration_without_a_section_says_so(tmp_path: Path) -> None:
    assert refusal(tmp_path, "run: {}\n").splitlines() == [
        "run.yaml: interfaces: missing, but required",
        "run.yaml: tasks: missing, but required",
        "run.yaml: training: missing, but required",
    ]


@pytest.mark.parametrize("name", ["demo", "paper/main", "paper/sweeps/main", "configs/paper/sweeps/main.yaml"])
def test_shipped_sweeps_are_found_by_name_and_as_in_a_file_listing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = shipped_sweep(Path(name))
    assert found.is_file()
    assert found.stem == Path(name).stem
    assert found.parent.name == "sweeps"
    assert {"demo", "activity", "paper/main"} <= set(shipped_sweeps())


def test_a_sweep_of_one_s_own_goes_first_and_an_unknown_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").write_text("name: mine", encoding="utf-8")
    assert shipped_sweep(Path("demo")) == Path("demo")
    with pytest.raises(ConfigurationError, match="dmo: no such file; sweeps that ship with the package: activity, demo,"):
        shipped_sweep(Path("dmo"))
