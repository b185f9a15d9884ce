"""Private text classifiers over token ids: a bag of embeddings and a bidirectional GRU.

Token 0 is padding and stands only at the end of a row; how much of it there is has no influence on either model.

Legend: ``B`` batch, ``L`` tokens, ``C`` classes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.models.private import ModelFacts, require_size

PADDING = 0
# torch draws embeddings from N(0, 1), which drowns what a few hundred texts can teach: most words occur only a few times.
EMBEDDING_DEVIATION = 0.1


class TextBag(nn.Module):
    """The mean of a text's token embeddings, hidden layers if any, and a linear head.

    Parameters
    ----------
    facts
        Classes and text buckets; the task has the modality ``text``.
    width
        Width of the embeddings and of the hidden layers.
    layers
        Number of hidden layers.
    """

    def __init__(self, facts: ModelFacts, *, width: int = 64, layers: int = 0) -> None:
        super().__init__()
        self.encoder = BagEncoder(facts, width)
        hidden: list[nn.Module] = []
        for _ in range(require_size("layers", layers, smallest=0)):
            hidden += [nn.Linear(width, width), nn.ReLU(inplace=True)]
        self.head = nn.Sequential(*hidden, nn.Linear(width, facts.require_classes()))

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        logits: Tensor = self.head(self.encoder(inputs["text"]))
        return logits


class TextBiGRU(nn.Module):
    """A bidirectional GRU over token embeddings, the mean of its states, and a linear head.

    Parameters
    ----------
    facts
        Classes and text buckets; the task has the modality ``text``.
    width
        Width of each direction's state; embeddings are twice as wide.
    """

    def __init__(self, facts: ModelFacts, *, width: int = 32) -> None:
        super().__init__()
        self.encoder = BiGRUEncoder(facts, width)
        self.head = nn.Linear(2 * width, facts.require_classes())

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        logits: Tensor = self.head(self.encoder(inputs["text"]))
        return logits


class BagEncoder(nn.Module):
    """Token ids (B, L) to the mean embedding (B, width) of the tokens that are not padding."""

    def __init__(self, facts: ModelFacts, width: int) -> None:
        super().__init__()
        require_tokens(facts)
        rows, width = facts.text_buckets, require_size("width", width)
        self.embeddings = nn.EmbeddingBag(rows, width, mode="mean", padding_idx=PADDING)
        shrink_embeddings(self.embeddings.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the text's vector (B, width)."""
        vectors: Tensor = self.embeddings(tokens)
        return vectors


class BiGRUEncoder(nn.Module):
    """Token ids (B, L) to the mean state (B, 2 * width) of a bidirectional GRU, which never reads padding."""

    def __init__(self, facts: ModelFacts, width: int) -> None:
        super().__init__()
        require_tokens(facts)
        rows, width = facts.text_buckets, require_size("width", width)
        self.embeddings = nn.Embedding(rows, 2 * width, padding_idx=PADDING)
        shrink_embeddings(self.embeddings.weight)
        self.recurrence = nn.GRU(2 * width, width, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the text's vector (B, 2 * width)."""
        # A packed sequence has at least one step: a text without tokens reads one padding embedding.
        lengths_B = (tokens != PADDING).sum(dim=1).clamp(min=1)
        packed = pack_padded_sequence(self.embeddings(tokens), lengths_B.cpu(), batch_first=True, enforce_sorted=False)
        states_BLW, _ = pad_packed_sequence(self.recurrence(packed)[0], batch_first=True)
        return states_BLW.sum(dim=1) / lengths_B.unsqueeze(1)


def require_tokens(facts: ModelFacts) -> None:
    """Raise :class:`ConfigurationError` unless texts are token ids."""
    shape = facts.input_shape("text")
    if facts.text_buckets < 1 or len(shape) != 1:
        raise ConfigurationError(
            f"the model reads texts as token ids (length,) in buckets, found the shape {shape} and {facts.text_buckets} buckets"
        )


def shrink_embeddings(weight: Tensor) -> None:
    """Scale freshly drawn embeddings, in place, to the deviation that suits few texts; padding stays zero."""
    with torch.no_grad():
        weight.mul_(EMBEDDING_DEVIATION)
