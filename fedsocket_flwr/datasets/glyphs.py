"""``glyphs``: image-text retrieval without a download, characters of the DejaVu fonts and their Unicode names."""

import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.datasets.options import choose_options
from fedsocket_flwr.datasets.sources import distribution_files, read_bytes, require_checksum
from fedsocket_flwr.errors import DataError

SIDE, FONT_SIZE, CENTRE, BASELINE = 28, 20, 14, 21
HOW_TO_GET = "install it with `pip install matplotlib` (extra `train`), or give `path` a folder with the four DejaVu 2.37 fonts"
# Font name in the column `font` -> file and its SHA-256. Another version holds other characters: the splits would differ.
FONTS = {
    "Sans": ("DejaVuSans.ttf", "3fdf69cabf06049ea70a00b5919340e2ce1e6d02b0cc3c4b44fb6801bd1e0d22"),
    "Sans Bold": ("DejaVuSans-Bold.ttf", "b184b89e3c1075f22f6b71575b6fc20d4972b3cfd3b23322ca6fd596dcaef167"),
    "Serif": ("DejaVuSerif.ttf", "107244956e9962b9e96faccdc551825e0ae0898ae13737133e1b921a2fd35ffa"),
    "Sans Mono": ("DejaVuSansMono.ttf", "602ec86b8948cfcd956482fe64f94c36c867770149ef2f791d4613f443bcecb3"),
}
# Characters common to all four are 2,377, too few for the splits; a name is kept when these three draw it.
REQUIRED = ("Sans", "Sans Bold", "Serif")


def locate(path: str | None = None) -> Path:
    """Return the folder of the four font files: the given one, or the one in the installed matplotlib (which is not imported)."""
    return Path(path) if path else distribution_files("matplotlib", "fonts/ttf/DejaVuSans.ttf", HOW_TO_GET)[0].parent


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Draw the characters.

    A character is an item when it has a Unicode name and Sans, Sans Bold and Serif draw something for it; Sans Mono has about
    three quarters of them. Each font's picture of a character is an image (``uint8``, 28 x 28, baseline and size fixed, so that
    ``o`` and ``O`` differ); the lower-cased name is its one caption. Characters that look alike stay: they are exact ties.

    Raises
    ------
    DataError
        A font file is missing, damaged or of another version, or Pillow or fontTools is not installed.
    """
    choose_options("data set 'glyphs'", options, {})
    drawings = _draw_all(locate(path))
    shared = set.intersection(*(set(drawings[font]) for font in REQUIRED))
    codes = sorted(shared)
    rows = [(font, row, code) for row, code in enumerate(codes) for font in FONTS if code in drawings[font]]
    captions = np.array([row for _, row, _ in rows], dtype=np.int64)
    return Corpus(
        name="glyphs",
        kind="retrieval",
        raw={
            "image": np.stack([drawings[font][code] for font, _, code in rows]),
            "text": [unicodedata.name(chr(code)).lower() for code in codes],
        },
        pairs=np.stack([np.arange(len(rows), dtype=np.int64), captions], axis=1),
        columns={"font": [font for font, _, _ in rows]},
        item=captions,
    )


def _draw_all(folder: Path) -> dict[str, dict[int, Array]]:
    """Return font -> code point -> drawing, for named characters that leave ink."""
    try:
        from fontTools.ttLib import TTFont  # type: ignore[import-untyped]
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise DataError(
            f"glyphs are drawn with Pillow and fontTools: {error}; `pip install pillow fonttools` (extra `demo`)"
        ) from error
    drawings: dict[str, dict[int, Array]] = {}
    for name, (file, checksum) in FONTS.items():
        require_checksum(folder / file, read_bytes(folder / file, HOW_TO_GET), checksum, HOW_TO_GET)
        with TTFont(folder / file, lazy=True) as table:
            codes = sorted(code for code in table.getBestCmap() if unicodedata.name(chr(code), ""))
        font = ImageFont.truetype(str(folder / file), FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
        drawn = {}
        for code in codes:
            image = Image.new("L", (SIDE, SIDE))
            ImageDraw.Draw(image).text((CENTRE, BASELINE), chr(code), fill=255, font=font, anchor="ms")
            if image.getbbox():
                drawn[code] = np.asarray(image, dtype=np.uint8)
        drawings[name] = drawn
    return drawings
