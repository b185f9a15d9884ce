"""Text for people: quantities with units, and names that stay on their line."""

import unicodedata


def one_line(text: str) -> str:
    """Replace line ends, control characters and lone surrogates, which have no place in a table or a line of a log, by spaces."""
    return "".join(" " if unicodedata.category(letter) in ("Cc", "Zl", "Zp", "Cs") else letter for letter in text)


def show_bytes(count: float, digits: int = 3) -> str:
    """Return a number of bytes with a decimal unit and so many digits, as in ``1.46 GB``."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.{digits}g} {unit}"
        size /= 1000
    return f"{size:.{digits}g} TB"
