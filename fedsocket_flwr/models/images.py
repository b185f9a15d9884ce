"""Private image classifiers: a convolutional network, a multilayer perceptron and a small residual network.

Sized for pictures of about 28 x 28 on one CPU thread; ``width`` or ``hidden`` scales them up.

Legend: ``B`` batch, ``C`` classes.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.models.private import ModelFacts, require_size


class ImageCNN(nn.Module):
    """Two convolutions, each with max pooling, then one hidden layer.

    Parameters
    ----------
    facts
        Classes, and the shape of an ``image`` (channels, height, width) of at least 4 x 4.
    width
        Channels of the first convolution; the second has twice as many.
    hidden
        Width of the hidden layer.
    """

    def __init__(self, facts: ModelFacts, *, width: int = 16, hidden: int = 64) -> None:
        super().__init__()
        self.trunk = convolutional_trunk(facts.input_shape("image"), width, hidden)
        self.head = nn.Linear(hidden, facts.require_classes())

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        logits: Tensor = self.head(self.trunk(inputs["image"]))
        return logits


class ImageMLP(nn.Module):
    """Two hidden layers over the flattened picture.

    Parameters
    ----------
    facts
        Classes, and the shape of an ``image``, which may also be a vector.
    hidden
        Width of both hidden layers.
    """

    def __init__(self, facts: ModelFacts, *, hidden: int = 128) -> None:
        super().__init__()
        self.trunk = dense_trunk(facts.input_shape("image"), hidden)
        self.head = nn.Linear(hidden, facts.require_classes())

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        logits: Tensor = self.head(self.trunk(inputs["image"]))
        return logits


class ImageResNet(nn.Module):
    """A residual network with BatchNorm: a stem of stride 2, two residual blocks, global average pooling.

    In training mode a batch of a single row has no variance to normalise by where the last maps are 1 x 1, and poor statistics
    elsewhere: whoever makes the batches avoids it.

    Parameters
    ----------
    facts
        Classes, and the shape of an ``image`` (channels, height, width).
    width
        Channels of the stem and of the first block; the second has twice as many at half the resolution.
    """

    def __init__(self, facts: ModelFacts, *, width: int = 16) -> None:
        super().__init__()
        channels, _, _ = image_shape(facts.input_shape("image"), smallest=1)
        require_size("width", width)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(ResidualBlock(width, width), ResidualBlock(width, 2 * width, stride=2))
        self.head = nn.Linear(2 * width, facts.require_classes())

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C)."""
        maps: Tensor = self.blocks(self.stem(inputs["image"]))
        logits: Tensor = self.head(maps.mean(dim=(2, 3)))
        return logits


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, which is a 1 x 1 convolution where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, maps: Tensor) -> Tensor:
        """Return the block's maps, (B, channels_out, height / stride, width / stride)."""
        return torch.relu(self.shortcut(maps) + self.convolutions(maps))


def convolutional_trunk(shape: tuple[int, ...], width: int, hidden: int) -> nn.Sequential:
    """Return the layers of :class:`ImageCNN` below its head: pictures of ``shape`` to (B, hidden)."""
    channels, height, columns = image_shape(shape, smallest=4)
    require_size("width", width)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 4) * (columns // 4), require_size("hidden", hidden)),
        nn.ReLU(inplace=True),
    )


def dense_trunk(shape: tuple[int, ...], hidden: int) -> nn.Sequential:
    """Return the layers of :class:`ImageMLP` below its head: inputs of ``shape`` to (B, hidden)."""
    require_size("hidden", hidden)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
    )


def image_shape(shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Return (channels, height, width), or raise :class:`ConfigurationError` for another rank or a smaller picture."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ConfigurationError(
            f"the model reads images (channels, height, width) of at least {smallest} x {smallest}, found the shape {shape}"
        )
    return shape[0], shape[1], shape[2]
