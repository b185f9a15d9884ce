import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedsocket_flwr.config import PartitionSettings, TaskSettings
from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.donors_recipients import DonorsAndRecipients
from fedsocket_flwr.datasets.partitions import split_task
from fedsocket_flwr.datasets.split_manifest import SPLITS
from fedsocket_flwr.errors import PartitionError


def people(persons: int = 12, bouts: int = 4, windows: int = 5, classes: int = 3) -> Corpus:
    """Every person does every activity in some bouts of some windows."""
    grid = list(itertools.product(range(persons), range(classes), range(bouts), range(windows)))
    labels = np.array([activity for _, activity, _, _ in grid], dtype=np.int64)
    columns = {
        "person": [f"p{person:02d}" for person, *_ in grid],
        "bout": [f"p{person:02d}-{activity}-{bout}" for person, activity, bout, _ in grid],
    }
    raw = {name: np.zeros((len(grid), 2, 2), dtype=np.uint8) for name in ("near", "far")}
    return Corpus("made", "classification", raw, labels, tuple("abcdefgh"[:classes]), columns=columns)


def task(donors: int = 2, recipients: int = 3, **partition: Any) -> TaskSettings:
    kind = {"kind": "donors_recipients", "group": "person", "unit": "bout"}
    sizes = {"test_groups": 3, "dev_groups": 2, "donor_groups": 2, "keep": 0.5, "alpha": 1.0}
    clients = [{"name": f"d{k}", "model": "m"} for k in range(donors)]
    clients += [{"name": f"r{k}", "model": "m", "modalities": ["near"]} for k in range(recipients)]
    return TaskSettings.model_validate(
        {
            "dataset": "made",
            "kind": "classification",
            "modalities": ["near", "far"],
            "shared": ["near"],
            "clients": clients,
            "partition": kind | sizes | partition,
        }
    )


def values(corpus: Corpus, column: str, rows: Any) -> set[str]:
    return set(np.asarray(corpus.columns[column])[list(rows)])


@pytest.mark.parametrize("test", ["shared", "own"])
def test_no_person_is_in_two_places(test: Any) -> None:
    corpus = people()
    splits = split_task("t", task(), corpus, test)
    places = [
        set().union(*(values(corpus, "person", getattr(split, which)) for split in splits.values())) for which in ("dev", "test")
    ]
    places += [values(corpus, "person", splits[donor].train) for donor in ("d0", "d1")]
    places += [set().union(*(values(corpus, "person", splits[f"r{k}"].train) for k in range(3)))]
    assert [len(place) for place in places] == [2, 3, 2, 2, 3]
    assert not any(a & b for a, b in itertools.combinations(places, 2))


def test_donors_have_whole_people_and_recipients_whole_bouts() -> None:
    corpus = people()
    splits = split_task("t", task(), corpus, "own")
    for donor in ("d0", "d1"):
        everything = np.isin(corpus.columns["person"], list(values(corpus, "person", splits[donor].train)))
        assert splits[donor].train == tuple(np.flatnonzero(everything))
    seen: set[str] = set()
    for k in range(3):
        bouts = values(corpus, "bout", splits[f"r{k}"].train)
        assert len(splits[f"r{k}"].train) == 5 * len(bouts)
        assert not bouts & seen
        seen |= bouts


def test_recipients_keep_their_share_of_bouts() -> None:
    corpus, roles = people(), ["donor", "donor", "recipient", "recipient", "recipient"]
    draw = DonorsAndRecipients("t", task().partition, corpus, [f"c{k}" for k in range(5)], roles)  # type: ignore[arg-type]
    kept, dealt = draw.train()
    # Three people's 36 bouts are all dealt; each recipient keeps half of its own, rounded.
    assert sum(len(part) for part in dealt[2:]) == 36 * 5
    for have, had in zip(kept[2:], dealt[2:], strict=True):
        assert set(have) <= set(had)
        assert len(have) // 5 == max(1, int(np.floor(len(had) / 5 * 0.5 + 0.5)))
    assert [part.tolist() for part in kept[:2]] == [part.tolist() for part in dealt[:2]]


def test_own_test_rows_follow_what_was_dealt() -> None:
    corpus, names, roles = (
        people(windows=20),
        [f"c{k}" for k in range(5)],
        ["donor", "donor", "recipient", "recipient", "recipient"],
    )
    draw = DonorsAndRecipients("t", task().partition, corpus, names, roles)  # type: ignore[arg-type]
    _, dealt = draw.train()
    parts = draw.own("test", dealt)
    assert sorted(np.concatenate(parts).tolist()) == sorted(draw.test.tolist())
    counts = np.array([np.bincount(corpus.labels[part], minlength=3) for part in dealt])
    expected = counts / counts.sum(axis=0) * np.bincount(corpus.labels[draw.test], minlength=3)
    found = np.array([np.bincount(corpus.labels[part], minlength=3) for part in parts])
    assert (abs(found - expected) < 2).all(), (found, expected)
    assert not found[counts == 0].any()


def test_shared_gives_everyone_all_test_people() -> None:
    corpus = people()
    splits = split_task("t", task(), corpus, "shared")
    assert len({split.test for split in splits.values()}) == len({split.dev for split in splits.values()}) == 1
    assert len(splits["r0"].test) == 3 * 60


def test_rows_are_units_where_no_column_names_them() -> None:
    splits = split_task("t", task(unit=None, keep=1.0), people(), "own")
    assert sum(len(splits[f"r{k}"].train) for k in range(3)) == 3 * 60


def test_the_seed_decides_and_names_do_not() -> None:
    corpus = people()
    first = split_task("t", task(), corpus, "own")
    renamed = task()
    renamed = renamed.model_copy(
        update={"clients": tuple(c.model_copy(update={"name": f"x{k}"}) for k, c in enumerate(renamed.clients))}
    )
    assert list(split_task("t", renamed, corpus, "own").values()) == list(first.values())
    assert split_task("t", task(seed=8), corpus, "own") != first
    assert split_task("u", task(), corpus, "own") != first


def test_a_unit_of_several_classes_goes_by_the_most_frequent() -> None:
    corpus = people()
    labels = corpus.labels.copy()
    labels[::5] = (labels[::5] + 1) % 3  # one window of five is of another class
    mixed = Corpus(corpus.name, corpus.kind, corpus.raw, labels, corpus.classes, columns=corpus.columns)
    whole, found = (split_task("t", task(), data, "shared") for data in (corpus, mixed))
    assert {name: split.train for name, split in found.items()} == {name: split.train for name, split in whole.items()}


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 3), st.floats(0.05, 20), st.floats(0.05, 1), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_rows_are_never_shared_or_invented(
    recipients: int, donors: int, classes: int, alpha: float, keep: float, seed: int
) -> None:
    corpus = people(persons=14, classes=classes, bouts=2)
    settings_of = task(donors, recipients, alpha=alpha, keep=keep, seed=seed, minimum_size=0)
    splits = split_task("t", settings_of, corpus, "own")
    rows = [row for split in splits.values() for which in SPLITS for row in getattr(split, which)]
    assert len(rows) == len(set(rows))
    assert set(rows) <= set(range(len(corpus.labels)))
    assert sum(len(split.test) for split in splits.values()) == 3 * classes * 10
    assert sum(len(split.dev) for split in splits.values()) == 2 * classes * 10


class TestWhatCannotBeDivided:
    def test_too_few_people(self) -> None:
        with pytest.raises(
            PartitionError, match=r"task 't': column 'person' has 9 groups; 3 for TEST, 2 for DEV and 2 for each of 2"
        ):
            split_task("t", task(), people(persons=9), "own")

    def test_a_column_that_is_not_there(self) -> None:
        with pytest.raises(PartitionError, match=r"task 't': data set 'made' has no column 'speaker' \(columns: bout, person\)"):
            split_task("t", task(group="speaker"), people(), "own")
        with pytest.raises(PartitionError, match="no column 'scene'"):
            split_task("t", task(unit="scene"), people(), "own")

    def test_a_minimum_that_no_draw_reaches(self) -> None:
        with pytest.raises(
            PartitionError, match=r"minimum_size is 200 training rows a client, but d0 has 120, d1 has 120, r0 has"
        ):
            split_task("t", task(minimum_size=200), people(), "own")

    def test_draws_go_on_until_everybody_has_the_minimum(self) -> None:
        small = [
            min(
                len(split_task("t", task(recipients=6, alpha=0.3, seed=seed, minimum_size=10), people(), "own")[f"r{k}"].train)
                for k in range(6)
            )
            for seed in range(5)
        ]
        assert min(small) >= 10

    def test_retrieval_and_published_splits(self) -> None:
        corpus = people()
        published = Corpus(
            corpus.name,
            corpus.kind,
            corpus.raw,
            corpus.labels,
            corpus.classes,
            columns=corpus.columns,
            part=["train"] * len(corpus.labels),
        )
        with pytest.raises(PartitionError, match="would mix the published split"):
            split_task("t", task(), published, "own")
        pairs = Corpus("pairs", "retrieval", {}, pairs=np.zeros((3, 2), dtype=np.int64))
        with pytest.raises(PartitionError, match="needs labels"):
            DonorsAndRecipients("t", task().partition, pairs, ["a"], ["donor"])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"group": None}, "needs `group`"),
            ({"donor_groups": 0}, "`donor_groups` of at least 1"),
            ({"train": 5}, "use test_groups and dev_groups instead of train"),
            ({"keep": 0}, "keep"),
            (
                {"kind": "iid"},
                "unit, test_groups, dev_groups, donor_groups, keep belong to kind donors_recipients, found kind iid",
            ),
        ],
    )
    def test_settings_that_contradict(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            task(**change)

    def test_every_kind_takes_a_group(self) -> None:
        assert PartitionSettings(kind="dirichlet", group="person").group == "person"

    @pytest.mark.parametrize(("donors", "recipients", "found"), [(0, 3, "recipient"), (2, 0, "donor")])
    def test_one_role_alone(self, donors: int, recipients: int, found: str) -> None:
        with pytest.raises(ValidationError, match=f"needs donors and recipients, found only {found}s"):
            task(donors, recipients)
