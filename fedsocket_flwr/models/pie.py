"""The paper's private models: ResNet-18/PIE for images, GloVe-BiGRU/PIE for texts, and both as the towers of a retrieval task.

PIE (polysemous instance embedding; Song and Soleymani, 2019) adds to a whole input's vector what an attention finds in its parts.
Token ids of texts are hashed words: a row of the embedding takes the vector of the first word of the file that has its id.

Legend: ``B`` batch, ``L`` parts of an input (places of a picture, words of a text), ``D`` width of a part, ``E`` embedding width,
``C`` classes.
"""

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from fedsocket_flwr.datasets.inputs import FIRST_WORD, hash_bucket
from fedsocket_flwr.datasets.word_vectors import chosen_word_vectors
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.models.images import image_shape
from fedsocket_flwr.models.private import ModelFacts, require_size
from fedsocket_flwr.models.resnet import ResNet18Trunk
from fedsocket_flwr.models.texts import PADDING, require_tokens, shrink_embeddings

WORD_WIDTH = 300


class PIE(nn.Module):
    """LayerNorm(whole + dropout(sigmoid(W attention(parts)))), with attention weights softmax(w tanh(V part)) over the parts.

    Parameters
    ----------
    part_width
        D.
    embedding
        E.
    attention
        Hidden width of the attention.
    dropout
        Share of the residual's numbers dropped in training.
    """

    def __init__(self, part_width: int, embedding: int, attention: int, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = require_size("attention", attention)
        self.attention = nn.Sequential(nn.Linear(part_width, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, 1, bias=False))
        self.map = nn.Linear(part_width, embedding)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(embedding)

    def forward(self, whole_BE: Tensor, parts_BLD: Tensor, absent_BL: Tensor | None = None) -> Tensor:
        """Return embeddings (B, E); parts that are ``absent`` get no attention, and at least one of a row must not be."""
        scores_BL = self.attention(parts_BLD).squeeze(2)
        if absent_BL is not None:
            scores_BL = scores_BL.masked_fill(absent_BL, float("-inf"))
        attended_BD = torch.einsum("bl,bld->bd", scores_BL.softmax(dim=1), parts_BLD)
        embeddings_BE: Tensor = self.norm(whole_BE + self.dropout(self.map(attended_BD).sigmoid()))
        return embeddings_BE


class ImageEncoder(nn.Module):
    """ResNet-18 and PIE over the places of its last maps: images (B, channels, height, width) to (B, E)."""

    def __init__(self, facts: ModelFacts, embedding: int, width: int, small_pictures: bool, dropout: float) -> None:
        super().__init__()
        channels, _, _ = image_shape(facts.input_shape("image"), smallest=1)
        self.trunk = ResNet18Trunk(channels, width, small_pictures)
        self.map = nn.Linear(self.trunk.width, require_size("embedding", embedding))
        self.pie = PIE(self.trunk.width, embedding, embedding, dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return embeddings (B, E)."""
        places_BLD = self.trunk(images).flatten(2).transpose(1, 2)
        embeddings_BE: Tensor = self.pie(self.map(places_BLD.mean(dim=1)), places_BLD)
        return embeddings_BE


class TextEncoder(nn.Module):
    """Word embeddings, the last states of a BiGRU, and PIE over the words: token ids (B, L) to (B, E)."""

    def __init__(self, facts: ModelFacts, embedding: int, words: tuple[str, str, str], word_width: int, dropout: float) -> None:
        super().__init__()
        require_tokens(facts)
        if require_size("embedding", embedding, smallest=2) % 2:
            raise ConfigurationError(f"embedding must be even, one half for each direction of the GRU, found {embedding}")
        known = word_rows(*words, facts.text_buckets) if any(words) else None
        width = require_size("word_width", word_width) if known is None else known.shape[1]
        self.words = nn.Embedding(facts.text_buckets, width, padding_idx=PADDING)
        if known is None:
            shrink_embeddings(self.words.weight)
        else:
            with torch.no_grad():
                self.words.weight.copy_(known)
        self.recurrence = nn.GRU(width, embedding // 2, batch_first=True, bidirectional=True)
        self.pie = PIE(width, embedding, embedding, dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return embeddings (B, E)."""
        absent_BL = tokens == PADDING
        # A text without words reads one padding embedding, in the GRU as in the attention.
        absent_BL = torch.cat([torch.zeros_like(absent_BL[:, :1]), absent_BL[:, 1:]], dim=1)
        words_BLD = self.words(tokens)
        packed = pack_padded_sequence(words_BLD, (~absent_BL).sum(dim=1).cpu(), batch_first=True, enforce_sorted=False)
        forwards_BS, backwards_BS = self.recurrence(packed)[1]
        embeddings_BE: Tensor = self.pie(torch.cat([forwards_BS, backwards_BS], dim=1), words_BLD, absent_BL)
        return embeddings_BE


class ResNet18PIE(nn.Module):
    """Image classifier: ResNet-18, PIE and a linear head.

    Parameters
    ----------
    facts
        Classes, and the shape of an ``image``.
    embedding
        E, also the hidden width of the attention.
    width
        Channels of ResNet-18's first stage; fewer for small machines.
    small_pictures
        Whether the stem keeps the resolution, as is common for CIFAR's 32 x 32.
    dropout
        Of PIE's residual.
    """

    def __init__(
        self, facts: ModelFacts, *, embedding: int = 256, width: int = 64, small_pictures: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.encoder = ImageEncoder(facts, embedding, width, small_pictures, dropout)
        self.head = nn.Linear(embedding, facts.require_classes())

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        logits: Tensor = self.head(self.encoder(inputs["image"]))
        return logits


class BiGRUPIE(nn.Module):
    """Text classifier: word embeddings, BiGRU, PIE and a linear head.

    Parameters
    ----------
    facts
        Classes and text buckets (the vocabulary's size).
    embedding
        E, also the hidden width of the attention; half of it are the states of each direction.
    word_width
        Width of word embeddings where no vectors are given.
    vectors, file, index
        Word vectors to start from, as in the interface ``glove``: a published name, or a file (and an array's index).
    dropout
        Of PIE's residual.
    """

    def __init__(
        self,
        facts: ModelFacts,
        *,
        embedding: int = 256,
        word_width: int = WORD_WIDTH,
        vectors: str | None = None,
        file: str | None = None,
        index: str | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        words = (vectors or "", file or "", index or "")
        self.encoder = TextEncoder(facts, embedding, words, word_width, dropout)
        self.head = nn.Linear(embedding, facts.require_classes())

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        logits: Tensor = self.head(self.encoder(inputs["text"]))
        return logits


class FlickrTowers(nn.Module):
    """The encoders of :class:`ResNet18PIE` and :class:`BiGRUPIE`, independent of each other, with embeddings of unit length.

    Parameters are theirs; pictures are of ImageNet's size by default.
    """

    def __init__(
        self,
        facts: ModelFacts,
        *,
        embedding: int = 256,
        width: int = 64,
        small_pictures: bool = False,
        word_width: int = WORD_WIDTH,
        vectors: str | None = None,
        file: str | None = None,
        index: str | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        words = (vectors or "", file or "", index or "")
        self.image = ImageEncoder(facts, embedding, width, small_pictures, dropout)
        self.text = TextEncoder(facts, embedding, words, word_width, dropout)

    def image_embeddings(self, images: Tensor) -> Tensor:
        """Return unit-length embeddings (B, E) of images (B, channels, height, width)."""
        return functional.normalize(self.image(images), dim=1)

    def text_embeddings(self, tokens: Tensor) -> Tensor:
        """Return unit-length embeddings (B, E) of token ids (B, L)."""
        return functional.normalize(self.text(tokens), dim=1)


@lru_cache(maxsize=4)
def word_rows(vectors: str, file: str, index: str, buckets: int) -> Tensor:
    """Return the embedding (buckets, D) that word vectors give hashed token ids; an id without a word is zero, as padding is.

    The first word of an id counts: files name frequent words first.
    """
    known = chosen_word_vectors("the private text model", vectors, file, index)
    rows = torch.zeros(buckets, known.dimension)
    of_bucket: dict[int, int] = {}
    for word, row in known.rows.items():
        of_bucket.setdefault(FIRST_WORD + hash_bucket(word, buckets - FIRST_WORD), row)
    rows[list(of_bucket)] = torch.from_numpy(known.array[list(of_bucket.values())])
    return rows
