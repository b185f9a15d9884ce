"""Extractors of texts: hashed words, and the mean of word vectors.

Legend: ``N`` rows, ``D`` numbers a text becomes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Raw
from fedsocket_flwr.datasets.inputs import hash_bucket, words
from fedsocket_flwr.datasets.interfaces import require_texts
from fedsocket_flwr.datasets.options import at_least, choose_options
from fedsocket_flwr.datasets.word_vectors import chosen_word_vectors

# Words that say little in any topic. Places, sizes, numbers and negations ("above", "two", "small", "not") are kept, and words
# that name a letter ("a", "i", "be"): captions are told apart by them.
# fmt: off
STOP_WORDS = frozenset({
    "and", "are", "as", "at", "been", "being", "but", "by", "can", "could", "did", "do", "does", "for", "from", "had",
    "has", "have", "her", "hers", "him", "his", "if", "in", "into", "is", "it", "its", "me", "my", "of", "on", "or",
    "our", "ours", "she", "should", "so", "such", "than", "that", "the", "their", "them", "then", "there", "these",
    "they", "this", "those", "to", "us", "was", "were", "what", "when", "which", "who", "whom", "will", "with", "would",
    "you", "your", "yours",
})
# fmt: on


class HashedWords:
    """Binary counts of hashed words: 1 in the bucket of every n-gram that the text has.

    Options: ``buckets`` (4096), ``ngrams`` (1: words; 2: also pairs of neighbouring words, after the stop words are dropped), and
    ``stop_words`` (true: drop the words of ``STOP_WORDS``). A text of stop words only keeps them; a text without words is zero.
    """

    content = ""

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = choose_options("interface 'hashed_words'", options, {"buckets": 4096, "ngrams": 1, "stop_words": True})
        at_least("interface 'hashed_words'", chosen, buckets=1, ngrams=1)
        self._buckets, self._ngrams, self._drop = int(chosen["buckets"]), int(chosen["ngrams"]), bool(chosen["stop_words"])

    def __call__(self, raw: Raw) -> Array:
        """Return ``float32`` (N, buckets) of zeros and ones."""
        texts = require_texts("hashed_words", raw)
        counts = np.zeros((len(texts), self._buckets), dtype=np.float32)
        for row, text in enumerate(texts):
            found = words(text)
            kept = [word for word in found if word not in STOP_WORDS] or found if self._drop else found
            for size in range(1, self._ngrams + 1):
                for start in range(len(kept) - size + 1):
                    counts[row, hash_bucket(" ".join(kept[start : start + size]), self._buckets)] = 1
        return counts


class MeanWordVectors:
    """The mean of the vectors of a text's words (GloVe's or any in its format); unknown words count for nothing.

    Options: ``vectors``, the name of published ones that an installed package holds (``glove-6b-50d``); or ``file``, a text file
    of GloVe's layout or a ``.npy`` array of vectors, which is mapped and not read whole; for an array also ``index``, a file with
    one word a line (or a parquet file with a text column) in the array's order; ``dimension`` (0: read from the file). Words are
    looked up in lower case. A text without a known word is zero.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = choose_options("interface 'glove'", options, {"vectors": "", "file": "", "index": "", "dimension": 0})
        self._vectors = chosen_word_vectors("interface 'glove'", **chosen)
        self.content = self._vectors.digest

    @property
    def parameters(self) -> int:
        """How many numbers the table of vectors has."""
        return int(self._vectors.array.size)

    def __call__(self, raw: Raw) -> Array:
        """Return ``float32`` (N, dimension)."""
        texts = require_texts("glove", raw)
        means = np.zeros((len(texts), self._vectors.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            known = [position for word in words(text) if (position := self._vectors.rows.get(word)) is not None]
            if known:
                means[row] = self._vectors.array[known].mean(axis=0, dtype=np.float64)
        return means
