"""The trunk of ResNet-18 (He et al., 2016), for pictures of ImageNet's size and for small ones.

Legend: ``B`` batch, ``D`` channels of the last maps.
"""

from torch import Tensor, nn

from fedsocket_flwr.models.images import ResidualBlock
from fedsocket_flwr.models.private import require_size


class ResNet18Trunk(nn.Module):
    """Pictures (B, channels, height, width) to maps (B, D, ...) with D = 8 x ``width``.

    At width 64 it has the layers and, in the same order, the parameters of torchvision's ``resnet18`` without ``fc``.

    Parameters
    ----------
    channels
        Colours of a picture.
    width
        Channels of the first of four stages; each later stage has twice as many at half the resolution.
    small_pictures
        Whether the stem keeps the resolution (3 x 3, as is common for CIFAR) instead of quartering it (7 x 7 and pooling).
    """

    def __init__(self, channels: int, width: int = 64, small_pictures: bool = False) -> None:
        super().__init__()
        self.width = 8 * require_size("width", width)
        kernel, stride = (3, 1) if small_pictures else (7, 2)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Identity() if small_pictures else nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks = [ResidualBlock(width, width), ResidualBlock(width, width)]
        for stage in (1, 2, 3):
            wide = width << stage
            blocks += [ResidualBlock(wide // 2, wide, stride=2), ResidualBlock(wide, wide)]
        self.blocks = nn.Sequential(*blocks)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the maps of the last stage."""
        maps: Tensor = self.blocks(self.stem(images))
        return maps
