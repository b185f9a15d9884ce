"""Private models of signals: a convolutional and a recurrent network.

Legend: ``B`` batch, ``T`` steps, ``A`` axes, ``C`` classes.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from fedsocket_flwr.models.private import ModelFacts, require_size


class SignalCNN(nn.Module):
    """One convolution along time, the mean over time, a linear head."""

    def __init__(self, facts: ModelFacts, *, channels: int = 8) -> None:
        super().__init__()
        _, axes = facts.input_shape("accelerometer")
        self.convolution = nn.Conv1d(axes, require_size("channels", channels), kernel_size=5, padding=2)
        self.head = nn.Linear(channels, facts.require_classes())

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        signals_BTA = inputs["accelerometer"]
        logits: Tensor = self.head(self.convolution(signals_BTA.transpose(1, 2)).relu().mean(dim=2))
        return logits


class SignalGRU(nn.Module):
    """A recurrent network, and a linear head on its last state."""

    def __init__(self, facts: ModelFacts, *, width: int = 8) -> None:
        super().__init__()
        _, axes = facts.input_shape("accelerometer")
        self.recurrence = nn.GRU(axes, require_size("width", width), batch_first=True)
        self.head = nn.Linear(width, facts.require_classes())

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        _, state = self.recurrence(inputs["accelerometer"])
        logits: Tensor = self.head(state[-1])
        return logits
