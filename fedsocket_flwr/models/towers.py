"""Private image-text retrieval models: a tower for each modality that ends in one space.

Legend: ``B`` batch, ``L`` tokens, ``E`` embedding width.
"""

from collections.abc import Callable
from difflib import get_close_matches

from torch import Tensor, nn
from torch.nn import functional

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.models.images import convolutional_trunk, dense_trunk
from fedsocket_flwr.models.private import ModelFacts, require_size
from fedsocket_flwr.models.texts import BagEncoder, BiGRUEncoder

Trunk = Callable[[ModelFacts, int], nn.Module]

# Every trunk ends in `width` features.
IMAGE_TRUNKS: dict[str, Trunk] = {
    "cnn": lambda facts, width: convolutional_trunk(facts.input_shape("image"), width // 4, width),
    "mlp": lambda facts, width: dense_trunk(facts.input_shape("image"), width),
}
TEXT_TRUNKS: dict[str, Trunk] = {
    "bag": BagEncoder,
    "bigru": lambda facts, width: BiGRUEncoder(facts, width // 2),
}


class ImageTextTowers(nn.Module):
    """Independent encoders of images and texts, each with a linear map into a common space of unit-length embeddings.

    Parameters
    ----------
    facts
        Shapes of ``image`` and ``text``, and text buckets.
    image
        Image tower: ``cnn`` as :class:`~fedsocket_flwr.models.images.ImageCNN` or ``mlp`` as its ``ImageMLP``.
    text
        Text tower: ``bag`` or ``bigru``, as in :mod:`fedsocket_flwr.models.texts`.
    width
        Features that each tower hands to its linear map, a multiple of 4; a CNN starts with ``width / 4`` channels, a GRU has
        ``width / 2`` states in each direction.
    embedding
        E.
    """

    def __init__(self, facts: ModelFacts, *, image: str = "cnn", text: str = "bag", width: int = 64, embedding: int = 64) -> None:
        super().__init__()
        if require_size("width", width, smallest=4) % 4:
            raise ConfigurationError(f"width must be a multiple of 4, found {width}")
        require_size("embedding", embedding)
        self.image_trunk = _trunk("image", IMAGE_TRUNKS, image)(facts, width)
        self.text_trunk = _trunk("text", TEXT_TRUNKS, text)(facts, width)
        self.image_map = nn.Linear(width, embedding)
        self.text_map = nn.Linear(width, embedding)

    def image_embeddings(self, images: Tensor) -> Tensor:
        """Return unit-length embeddings (B, E) of images (B, channels, height, width)."""
        return functional.normalize(self.image_map(self.image_trunk(images)), dim=1)

    def text_embeddings(self, tokens: Tensor) -> Tensor:
        """Return unit-length embeddings (B, E) of token ids (B, L)."""
        return functional.normalize(self.text_map(self.text_trunk(tokens)), dim=1)


def _trunk(argument: str, trunks: dict[str, Trunk], name: str) -> Trunk:
    if name in trunks:
        return trunks[name]
    nearest = get_close_matches(str(name), trunks, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise ConfigurationError(f"{argument} must be one of {', '.join(trunks)}, found {name!r}{hint}")
