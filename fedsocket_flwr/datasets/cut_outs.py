"""Pictures without a background, as emoji and stamps are: laid on white, centred in a square, scaled to one size."""

import io
from pathlib import Path

import numpy as np

from fedsocket_flwr.datasets.corpus import Array
from fedsocket_flwr.errors import DataError


def picture_on_white(file: Path, content: bytes, size: int) -> Array:
    """Return a picture as ``uint8`` (size, size, 3), whatever its own mode, its transparent parts white.

    Parameters
    ----------
    file
        Its file, for the message.
    content
        The file's bytes.
    size
        The side; a picture that is no square gets white margins and keeps its proportions.

    Raises
    ------
    DataError
        The bytes are no picture.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as image:
            cut_out = image.convert("RGBA")
        on_white = Image.alpha_composite(Image.new("RGBA", cut_out.size, "white"), cut_out).convert("RGB")
        side = max(on_white.size)
        square = ImageOps.pad(on_white, (side, side), color="white")
        return np.asarray(square.resize((size, size), Image.Resampling.BILINEAR), dtype=np.uint8)
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{file} is not a picture that can be read: {error}") from error
