"""Private classifiers of one modality that comes as a sequence of feature vectors: an MLP, a temporal CNN, a Transformer.

They are the recipients of the same-task protocol (FedSocket v1, A.2) and differ in the architecture alone. The paper names the
three and gives their size on UCF-51, about 0.43 M parameters (Table 22); layers and widths are ours, chosen for it:
with the default arguments each comes within 10 % for 8 tokens of 1280 and 51 classes. A vector is a sequence of one token. Every
token counts: there is no padding. None has dropout or batch statistics, so that the logits of a row depend on that row alone.

Legend: ``B`` batch, ``N`` tokens, ``D`` width of a token, ``W`` width of the model, ``C`` classes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.models.private import ModelFacts, require_size

POSITION_DEVIATION = 0.02


class SequenceMLP(nn.Module):
    """Two hidden layers over the mean of the normalised tokens, whatever their order.

    Parameters
    ----------
    facts
        Classes, and one modality of vectors (D,) or tokens (N, D).
    width
        Width of both hidden layers.
    """

    def __init__(self, facts: ModelFacts, *, width: int = 256) -> None:
        super().__init__()
        self.modality = only_modality(facts)
        _, features = sequence_shape(facts, self.modality)
        require_size("width", width)
        self.norm = nn.LayerNorm(features)
        self.trunk = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, facts.require_classes())

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        mean_BD = self.norm(as_sequence(inputs[self.modality])).mean(dim=1)
        logits_BC: Tensor = self.head(self.trunk(mean_BD))
        return logits_BC


class SequenceCNN(nn.Module):
    """Two convolutions of three steps over time, and the mean of their maps.

    Parameters
    ----------
    facts
        Classes, and one modality of vectors (D,) or tokens (N, D).
    width
        Channels of both convolutions.
    """

    def __init__(self, facts: ModelFacts, *, width: int = 100) -> None:
        super().__init__()
        self.modality = only_modality(facts)
        _, features = sequence_shape(facts, self.modality)
        require_size("width", width)
        self.norm = nn.LayerNorm(features)
        self.convolutions = nn.Sequential(
            nn.Conv1d(features, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, width, 3, padding=1), nn.GELU()
        )
        self.head = nn.Linear(width, facts.require_classes())

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        tokens_BND = self.norm(as_sequence(inputs[self.modality]))
        maps_BWN = self.convolutions(tokens_BND.transpose(1, 2))
        logits_BC: Tensor = self.head(maps_BWN.mean(dim=2))
        return logits_BC


class SequenceTransformer(nn.Module):
    """Learned positions, pre-norm self-attention layers, and the mean of their tokens.

    Parameters
    ----------
    facts
        Classes, and one modality of vectors (D,) or tokens (N, D).
    width
        W, a multiple of ``heads``; the layers' feed-forward parts are twice as wide.
    layers
        Number of self-attention layers.
    heads
        Attention heads of each layer.
    """

    def __init__(self, facts: ModelFacts, *, width: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.modality = only_modality(facts)
        tokens, features = sequence_shape(facts, self.modality)
        if require_size("width", width) % require_size("heads", heads):
            raise ConfigurationError(f"width must be a multiple of heads, found width {width} and {heads} heads")
        self.entrance = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, width))
        self.positions = nn.Parameter(POSITION_DEVIATION * torch.randn(tokens, width))
        # A list, since nn.TransformerEncoder would start every layer as a copy of one.
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(require_size("layers", layers))
            )
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, facts.require_classes()))

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        tokens_BNW = self.entrance(as_sequence(inputs[self.modality])) + self.positions
        logits_BC: Tensor = self.head(self.layers(tokens_BNW).mean(dim=1))
        return logits_BC


def only_modality(facts: ModelFacts) -> str:
    """Return the task's only modality, or raise :class:`ConfigurationError` where there are several."""
    if len(facts.input_shapes) != 1:
        raise ConfigurationError(f"the model reads one modality, the client has {', '.join(facts.input_shapes) or 'none'}")
    return next(iter(facts.input_shapes))


def sequence_shape(facts: ModelFacts, modality: str) -> tuple[int, int]:
    """Return (N, D) of a modality, (1, D) for vectors, or raise :class:`ConfigurationError` for anything else."""
    shape = facts.input_shape(modality)
    if modality == "text" and facts.text_buckets > 0:
        raise ConfigurationError("the model reads texts as feature vectors, found token ids")
    if len(shape) not in (1, 2):
        raise ConfigurationError(f"the model reads vectors (D,) or tokens (N, D) of {modality!r}, found the shape {shape}")
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


def as_sequence(values: Tensor) -> Tensor:
    """Return tokens (B, N, D) as they are, and vectors (B, D) as one token each."""
    return values.unsqueeze(1) if values.ndim == 2 else values
