"""File names made from names that people chose."""

import hashlib
import re

LONGEST_STEM = 40
_PLAIN = re.compile(r"[a-z0-9](?:[a-z0-9_-]*[a-z0-9_])?")
_DIGEST_AT_END = re.compile(r"-[0-9a-f]{10}$")
# Windows keeps these names for devices, with any extension.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)")


def file_slug(name: str) -> str:
    """Return a file name for any name: readable, inside its folder, and another one for every other name.

    A short name in lower-case ASCII letters, digits, ``_`` and ``-`` is its own slug. Every other one is reduced to such letters
    and gets a digest of the original at its end, so that ``News`` and ``news``, or ``a/b`` and ``a.b``, do not meet even where a
    file system ignores case. No slug has a dot, a separator or more than 51 characters.

    Parameters
    ----------
    name
        Any text, the empty one included.

    Returns
    -------
    str
        The file name, without an extension.
    """
    plain = _PLAIN.fullmatch(name) is not None and len(name) <= LONGEST_STEM
    if plain and not _DIGEST_AT_END.search(name) and not _DEVICES.fullmatch(name):
        return name
    stem = re.sub(r"[^a-z0-9_]+", "-", name.lower()[: 4 * LONGEST_STEM])[:LONGEST_STEM].strip("-_") or "name"
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    return f"{stem}-{digest}"
