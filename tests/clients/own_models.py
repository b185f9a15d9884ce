"""Private models that a user could name by import path."""

from collections.abc import Mapping

from torch import Tensor, nn

from fedsocket_flwr.models.private import ModelFacts


class DroppingBag(nn.Module):
    """A bag of words with dropout: its training draws from torch's generator."""

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__()
        self.embeddings = nn.EmbeddingBag(facts.text_buckets, 8, mode="mean")
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, facts.require_classes()))

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = self.head(self.embeddings(inputs["text"]))
        return logits


class BreakingBag(DroppingBag):
    """Sound where it is only asked, NaN where it learns."""

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits = super().forward(inputs)
        return logits * float("nan") if self.training else logits


class NormalisedVectors(nn.Module):
    """Batch normalisation over flat pictures: a batch of one row has no variance."""

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__()
        pixels = 1
        for length in facts.input_shape("image"):
            pixels *= length
        self.layers = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(pixels), nn.Linear(pixels, facts.require_classes()))

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = self.layers(inputs["image"])
        return logits
