"""EfficientNet-Lite0 with the published ImageNet weights of an installed package, as timm's network.

The package holds the weights under the names of the code that they were converted for; timm's ``tf_efficientnet_lite0`` is the
same network (BatchNorm's epsilon 1e-3, padding as TensorFlow does it) under other names.
"""

import re
from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsocket_flwr.datasets.backbones import FrozenNetwork, build_network
from fedsocket_flwr.datasets.corpus import Array, Raw
from fedsocket_flwr.datasets.interface_packages import INTERFACE_FILES, published_files
from fedsocket_flwr.datasets.options import at_least, choose_options

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

TIMM_MODEL = "tf_efficientnet_lite0"
# Blocks of each stage: the package counts blocks through, timm counts them within their stage.
STAGES = (1, 2, 2, 3, 3, 4, 1)
# What stands before and behind the blocks, and within one; the first stage's block does not widen before its convolution.
OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
FIRST_STAGE = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
LATER_STAGES = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
MEAN = STD = (0.5, 0.5, 0.5)
_BLOCK = re.compile(r"_blocks\.(\d+)\.")


class EfficientNetLite0:
    """The 1280 pooled features of EfficientNet-Lite0 (Apache-2.0), pictures scaled to [-1, 1].

    Options: ``size`` of the picture (224); ``file``, weights in the package's place, under its names or timm's.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = choose_options("interface 'efficientnet_lite0'", options, {"size": 224, "file": ""})
        at_least("interface 'efficientnet_lite0'", chosen, size=1)
        file = Path(chosen["file"]) if chosen["file"] else published_files("efficientnet_lite0")[0]
        build = partial(build_network, "timm", TIMM_MODEL, file=str(file), renamed=timm_names)
        self._network = FrozenNetwork("efficientnet_lite0", build, chosen["size"], MEAN, STD)
        # The published file is known to fit, so a process that only reads features builds no network (seconds of imports).
        self.content = self._network.checksum if chosen["file"] else INTERFACE_FILES["efficientnet_lite0"].digest

    @property
    def parameters(self) -> int:
        """How many the network has."""
        return self._network.parameters

    def __call__(self, raw: Raw) -> Array:
        """Return ``float32`` (N, 1280)."""
        return self._network(raw)


def timm_names(weights: "Weights") -> dict[str, "torch.Tensor"]:
    """Return the tensors under timm's names; a name that is not the package's stays as it is."""
    return {timm_name(name): tensor for name, tensor in weights.items()}


def timm_name(name: str) -> str:
    """Return timm's name of one tensor of the package."""
    block = _BLOCK.match(name)
    if block is None:
        return _renamed(name, OUTSIDE)
    number, ends = int(block[1]), list(accumulate(STAGES))
    stage = next((stage for stage, end in enumerate(ends) if number < end), None)
    if stage is None:
        return name
    place = number - (ends[stage] - STAGES[stage])
    return f"blocks.{stage}.{place}.{_renamed(name[block.end() :], LATER_STAGES if stage else FIRST_STAGE)}"


def _renamed(name: str, names: Mapping[str, str]) -> str:
    layer, dot, rest = name.partition(".")
    return f"{names.get(layer, layer)}{dot}{rest}"
