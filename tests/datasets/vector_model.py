"""A private model of whatever vectors a task has, named by import path."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsocket_flwr.models.private import ModelFacts


class VectorModel(nn.Module):
    def __init__(self, facts: ModelFacts) -> None:
        super().__init__()
        self.modalities = tuple(facts.input_shapes)
        self.head = nn.Linear(sum(math.prod(shape) for shape in facts.input_shapes.values()), facts.require_classes())

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = self.head(torch.cat([inputs[modality].flatten(1) for modality in self.modalities], dim=1))
        return logits
