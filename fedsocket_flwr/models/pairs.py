"""Private classifiers of two modalities, the donors of the same-task protocol (FedSocket v1, Appendix I).

Each modality comes as vectors or as tokens; the first and the second are those of the task's order. The paper names the parts of
both donors and, for UCF-51, the size (about 0.43 M parameters, Table 22); layers and widths are ours, chosen for that size.

Legend: ``B`` batch, ``N`` tokens, ``D`` width of a token, ``W`` width of a modality's code, ``C`` classes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.models.private import ModelFacts, require_size
from fedsocket_flwr.models.sequences import as_sequence, sequence_shape


class BottleneckPair(nn.Module):
    """A bottleneck for each modality, then one hidden layer over both (the donors of MELD).

    A bottleneck is a LayerNorm and a narrow layer; the tokens of a sequence are averaged before it.

    Parameters
    ----------
    facts
        Classes, and two modalities of vectors (D,) or tokens (N, D).
    bottleneck
        Width of each bottleneck.
    hidden
        Width of the hidden layer over the two.
    """

    def __init__(self, facts: ModelFacts, *, bottleneck: int = 128, hidden: int = 128) -> None:
        super().__init__()
        self.modalities = two_modalities(facts)
        require_size("bottleneck", bottleneck)
        require_size("hidden", hidden)
        self.encoders = nn.ModuleList(CodeEncoder(facts, modality, bottleneck, attention=False) for modality in self.modalities)
        self.head = nn.Sequential(nn.Linear(2 * bottleneck, hidden), nn.GELU(), nn.Linear(hidden, facts.require_classes()))

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        codes = [encoder(inputs[modality]) for encoder, modality in zip(self.encoders, self.modalities, strict=True)]
        logits_BC: Tensor = self.head(torch.cat(codes, dim=1))
        return logits_BC


class AttentionPair(nn.Module):
    """Attention-pooled modalities combined through four heads (the donors of CREMA-D and UCF-51).

    With codes ``z1`` and ``z2`` of the two modalities the heads are: linear on ``z1``; linear on ``z2``; linear on the gated code
    ``g * z1 + (1 - g) * z2`` with ``g = sigmoid(Linear([z1, z2]))`` for every component; and the joint head, one hidden layer on
    ``[z1, z2]``, since a linear one could say no more than the first two together.

    The paper lists the four heads without saying what becomes of them, and has no loss on a single head. We read them as one
    classifier: the logits are the mean of the four heads' logits, so that the ordinary private losses train every head.

    Parameters
    ----------
    facts
        Classes, and two modalities of vectors (D,) or tokens (N, D).
    width
        W, also the width of the joint head's hidden layer.
    """

    def __init__(self, facts: ModelFacts, *, width: int = 144) -> None:
        super().__init__()
        self.modalities = two_modalities(facts)
        classes = facts.require_classes()
        require_size("width", width)
        self.encoders = nn.ModuleList(CodeEncoder(facts, modality, width, attention=True) for modality in self.modalities)
        self.first_head = nn.Linear(width, classes)
        self.second_head = nn.Linear(width, classes)
        self.gate = nn.Linear(2 * width, width)
        self.gated_head = nn.Linear(width, classes)
        self.joint_head = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, classes))

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C), the mean over the four heads."""
        first_BW, second_BW = (
            encoder(inputs[modality]) for encoder, modality in zip(self.encoders, self.modalities, strict=True)
        )
        both = torch.cat([first_BW, second_BW], dim=1)
        gated_BW = torch.lerp(second_BW, first_BW, self.gate(both).sigmoid())
        logits_BC: Tensor = (
            self.first_head(first_BW) + self.second_head(second_BW) + self.gated_head(gated_BW) + self.joint_head(both)
        ) / 4
        return logits_BC


class CodeEncoder(nn.Module):
    """One modality, vectors (B, D) or tokens (B, N, D), to a code (B, W); tokens are pooled by attention or averaged."""

    def __init__(self, facts: ModelFacts, modality: str, width: int, attention: bool) -> None:
        super().__init__()
        tokens, features = sequence_shape(facts, modality)
        self.norm = nn.LayerNorm(features)
        # One token leaves attention nothing to choose, and its weights nothing to learn from.
        self.attention = nn.Linear(features, 1, bias=False) if attention and tokens > 1 else None
        self.layer = nn.Sequential(nn.Linear(features, width), nn.GELU())

    def forward(self, values: Tensor) -> Tensor:
        """Return the code (B, W)."""
        tokens_BND = self.norm(as_sequence(values))
        if self.attention is None:
            pooled_BD = tokens_BND.mean(dim=1)
        else:
            pooled_BD = (self.attention(tokens_BND).softmax(dim=1) * tokens_BND).sum(dim=1)
        code_BW: Tensor = self.layer(pooled_BD)
        return code_BW


def two_modalities(facts: ModelFacts) -> tuple[str, str]:
    """Return the task's two modalities in its order, or raise :class:`ConfigurationError` for another number of them."""
    if len(facts.input_shapes) != 2:
        raise ConfigurationError(f"the model reads two modalities, the client has {', '.join(facts.input_shapes) or 'none'}")
    first, second = facts.input_shapes
    return first, second
