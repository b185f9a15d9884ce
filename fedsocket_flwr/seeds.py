"""Seeds derived by hashing, so that no draw depends on process, worker or order of replies."""

import hashlib

import numpy as np

SEED_BITS = 63


def derive_seed(*parts: int | str) -> int:
    """Return a seed that depends on every part and on nothing else.

    Parameters
    ----------
    *parts
        What identifies the draw, usually run seed, client, round and purpose. An integer and its text differ.

    Returns
    -------
    int
        A number below ``2**63``, which numpy and torch accept alike.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return int.from_bytes(digest.digest(), "big") >> (64 - SEED_BITS)


def numpy_generator(*parts: int | str) -> np.random.Generator:
    """Return a numpy generator seeded by :func:`derive_seed`."""
    return np.random.default_rng(derive_seed(*parts))
