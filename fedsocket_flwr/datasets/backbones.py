"""A frozen picture network of torchvision or timm as extractor: its pooled features before the classifier.

Legend: ``B`` batch, ``D`` numbers that the network gives.
"""

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Raw
from fedsocket_flwr.datasets.image_interfaces import planes, resized
from fedsocket_flwr.datasets.interfaces import require_images
from fedsocket_flwr.datasets.options import at_least, choose_options, unknown_name
from fedsocket_flwr.datasets.sources import require_real_file
from fedsocket_flwr.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    import torch

    Weights = dict[str, torch.Tensor]

LIBRARIES = ("timm", "torchvision")
# Attribute names under which torchvision and timm keep the classifier.
HEADS = ("fc", "classifier", "heads", "head")
DEFAULT, CACHED = "default", "hf:"
CACHED_FILES = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")
CHUNK = 32


class Backbone:
    """Pooled features of a frozen network.

    Options: ``library`` (``torchvision`` or ``timm``), ``model`` (its name there); ``weights``: ``default`` (the library's, from
    its cache or the network), a name of torchvision's such as ``IMAGENET1K_V1``, or ``hf:owner/name`` for what Hugging Face's
    cache already holds; or instead ``file``, a ``.safetensors`` file or a ``state_dict`` saved by torch; ``size`` of the picture
    (224), ``mean`` and ``std`` per colour (ImageNet's).
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        defaults = {
            "library": "torchvision",
            "model": "resnet18",
            "weights": "default",
            "file": "",
            "size": 224,
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
        }
        chosen = choose_options("interface 'backbone'", options, defaults)
        at_least("interface 'backbone'", chosen, size=1)
        if chosen["library"] not in LIBRARIES:
            raise unknown_name("library of interface 'backbone'", chosen["library"], LIBRARIES)
        for key in ("mean", "std"):
            numbers = all(isinstance(value, int | float) for value in chosen[key])
            if len(chosen[key]) != 3 or not numbers or (key == "std" and not min(chosen[key]) > 0):
                raise ConfigurationError("interface 'backbone': mean and std need three numbers each, std above zero")
        build = partial(build_network, chosen["library"], chosen["model"], chosen["weights"], chosen["file"])
        self._network = FrozenNetwork("backbone", build, chosen["size"], chosen["mean"], chosen["std"])
        self.content = self._network.checksum

    @property
    def parameters(self) -> int:
        """How many the network has."""
        return self._network.parameters

    def __call__(self, raw: Raw) -> Array:
        """Return ``float32`` (N, D)."""
        return self._network(raw)


class FrozenNetwork:
    """A network without classifier, applied to pictures.

    Parameters
    ----------
    kind
        The interface's name, for messages.
    build
        Makes the network, when it is first needed: it takes ``float32`` (B, 3, size, size) and gives (B, D) or maps of one cell.
    size
        Side to which pictures are scaled.
    mean, std
        Three numbers each: what every colour in [0, 1] is reduced and divided by.
    """

    def __init__(
        self, kind: str, build: Callable[[], "torch.nn.Module"], size: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self._kind, self._build, self._size = kind, build, size
        self._mean, self._std = (np.asarray(values, dtype=np.float32).reshape(3, 1, 1) for values in (mean, std))

    @cached_property
    def network(self) -> "torch.nn.Module":
        """The network, in evaluation mode."""
        return self._build()

    @property
    def checksum(self) -> str:
        """The SHA-256 of the network's weights."""
        return weights_checksum(self.network.state_dict())

    @property
    def parameters(self) -> int:
        """How many the network has."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def __call__(self, raw: Raw) -> Array:
        """Return ``float32`` (N, D), computed on the first GPU that this process sees, else on the CPU."""
        import torch

        images = require_images(self._kind, raw)
        device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        network = self.network.to(device)
        found = []
        # Full float32 on a GPU too, and algorithms that give the same bits each time.
        with torch.inference_mode(), torch.backends.cudnn.flags(True, False, deterministic=True, allow_tf32=False):
            for start in range(0, len(images), CHUNK):
                pictures = resized(planes(images[start : start + CHUNK], 3), self._size)
                output = network(torch.from_numpy((pictures - self._mean) / self._std).to(device))
                found.append(output.flatten(1).cpu().numpy())
        return np.concatenate(found)


def build_network(
    library: str, model: str, weights: str = DEFAULT, file: str = "", renamed: Callable[["Weights"], "Weights"] | None = None
) -> "torch.nn.Module":
    """Build a network without its classifier, with weights, in evaluation mode.

    Parameters
    ----------
    library, model
        Where the network is from and what it is called there.
    weights
        ``default``, a name of torchvision's for weights of this model, or ``hf:owner/name``.
    file
        A file of weights that takes the place of ``weights``, or nothing.
    renamed
        Gives the file's tensors the names that the network has for them; None: they have them.

    Raises
    ------
    ConfigurationError
        The library is not installed or has no such model, or ``weights`` says something else.
    DataError
        The weights are missing, damaged, or another architecture's.
    """
    import torch

    path = Path(file) if file else cached_file(weights.removeprefix(CACHED)) if weights.startswith(CACHED) else None
    build = _from_torchvision if library == "torchvision" else _from_timm
    try:
        # A new network draws its weights from torch's global generator: leave that as it was.
        with torch.random.fork_rng(devices=[]):
            network = build(model, weights if path is None else None)
    except ImportError as error:
        raise ConfigurationError(
            f"interface 'backbone' needs {library}: {error}; `pip install {library}` (extra `vision`)"
        ) from error
    if path is not None:
        load_weights(network, path, f"{library} {model}", renamed)
    return network.eval().requires_grad_(False)


def _from_torchvision(model: str, weights: str | None) -> "torch.nn.Module":
    import torch
    from torchvision import models

    if model not in models.list_models():
        raise unknown_name("torchvision model", model, models.list_models())
    names = [DEFAULT, *models.get_model_weights(model).__members__]
    if weights is not None and weights not in names:
        raise unknown_name(f"weights of torchvision's {model} (or hf:owner/name)", weights, names)
    try:
        chosen = "DEFAULT" if weights == DEFAULT else weights
        network: torch.nn.Module = models.get_model(model, weights=chosen)
    except (OSError, RuntimeError) as error:
        raise _not_to_be_had(f"torchvision {model}", error) from error
    for head in HEADS:
        if hasattr(network, head):
            setattr(network, head, torch.nn.Identity())
    return network


def _from_timm(model: str, weights: str | None) -> "torch.nn.Module":
    import timm
    import torch

    if not timm.is_model(model):
        raise unknown_name("timm model", model, timm.list_models())
    if weights not in (None, DEFAULT):
        raise ConfigurationError(
            f"option 'weights' of interface 'backbone' must be {DEFAULT!r} or hf:owner/name for timm, found {weights!r}"
        )
    try:
        network: torch.nn.Module = timm.create_model(model, pretrained=weights is not None, num_classes=0)
    except (OSError, RuntimeError) as error:
        raise _not_to_be_had(f"timm {model}", error) from error
    return network


def _not_to_be_had(what: str, error: Exception) -> DataError:
    return DataError(
        f"the library's weights of {what} are neither cached nor to be had ({error}); give options.file, or weights: "
        "hf:owner/name, or choose another interface"
    )


def cached_file(repository: str) -> Path:
    """Return the weights file of a repository that Hugging Face's cache holds; nothing is downloaded."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for name in CACHED_FILES:
        try:
            found = try_to_load_from_cache(repository, name)
        except HFValidationError as error:
            raise ConfigurationError(f"{CACHED}{repository} is not the name of a repository, expected hf:owner/name") from error
        if isinstance(found, str):
            return Path(found)
    raise DataError(
        f"Hugging Face's cache holds none of {', '.join(CACHED_FILES)} of {repository!r}; "
        f"fetch it with `hf download {repository}`"
    )


def read_weights(path: Path) -> "Weights":
    """Read the tensors of a ``.safetensors`` file or of a ``state_dict`` saved by torch; nothing else is unpickled."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    require_real_file(path)
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError, LookupError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} ({path.stat().st_size} bytes) holds no readable weights: {first}") from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not found or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise DataError(f"{path} holds no state_dict of tensors, found {type(found).__name__}")
    return found


def load_weights(
    network: "torch.nn.Module", path: Path, what: str, renamed: Callable[["Weights"], "Weights"] | None = None
) -> None:
    """Load a file into a network without classifier; the file's classifier is left out, all else must fit exactly."""
    wanted, given = network.state_dict(), read_weights(path)
    given = renamed(given) if renamed else given
    found = {name: value for name, value in given.items() if name.split(".")[0] not in HEADS or name in wanted}
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    shapes = [name for name in wanted if name in found and wanted[name].shape != found[name].shape]
    if missing or extra or shapes:
        first = (missing or extra or shapes)[0]
        sizes = f" with {tuple(found[first].shape)} in place of {tuple(wanted[first].shape)}" if first in shapes else ""
        raise DataError(
            f"{path} holds the weights of another architecture than {what}: {len(missing)} tensors missing, "
            f"{len(extra)} unknown, {len(shapes)} of another shape, the first is {first!r}{sizes}"
        )
    network.load_state_dict(found)


def weights_checksum(weights: Mapping[str, "torch.Tensor"]) -> str:
    """Return the SHA-256 over names and values."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = weights[name].detach().cpu().contiguous().numpy()
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()
