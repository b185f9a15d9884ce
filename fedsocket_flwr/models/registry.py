"""Private models by name, or by a user's own import path, built and checked before anything is trained."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.import_paths import is_import_path, load
from fedsocket_flwr.models.private import ModelFacts, RetrievalModel

__all__ = ["PRIVATE_MODELS", "ModelFacts", "build_private_model"]

# A name and where it is defined; loaded when asked for. Adding a model is adding a row.
PRIVATE_MODELS: dict[str, str] = {
    "image_cnn": "fedsocket_flwr.models.images:ImageCNN",
    "image_mlp": "fedsocket_flwr.models.images:ImageMLP",
    "image_resnet": "fedsocket_flwr.models.images:ImageResNet",
    "text_bag": "fedsocket_flwr.models.texts:TextBag",
    "text_bigru": "fedsocket_flwr.models.texts:TextBiGRU",
    "image_text_towers": "fedsocket_flwr.models.towers:ImageTextTowers",
    "resnet18_pie": "fedsocket_flwr.models.pie:ResNet18PIE",
    "bigru_pie": "fedsocket_flwr.models.pie:BiGRUPIE",
    "flickr_towers": "fedsocket_flwr.models.pie:FlickrTowers",
    "sequence_mlp": "fedsocket_flwr.models.sequences:SequenceMLP",
    "sequence_cnn": "fedsocket_flwr.models.sequences:SequenceCNN",
    "sequence_transformer": "fedsocket_flwr.models.sequences:SequenceTransformer",
    "bottleneck_pair": "fedsocket_flwr.models.pairs:BottleneckPair",
    "attention_pair": "fedsocket_flwr.models.pairs:AttentionPair",
}
PROBE_ROWS = 2
UNIT_TOLERANCE = 1e-3


def build_private_model(name: str, arguments: Mapping[str, Any], facts: ModelFacts) -> nn.Module:
    """Build a private model and try it on a small batch.

    Parameters are drawn from torch's default generator, which the caller seeds. The model comes in training mode, on the CPU.

    Parameters
    ----------
    name
        A name of :data:`PRIVATE_MODELS`, or ``package.module:Class`` of a class whose constructor takes ``facts`` first and its
        arguments by keyword.
    arguments
        Keyword arguments of the constructor.
    facts
        What the task and the data say.

    Returns
    -------
    nn.Module
        A :class:`~fedsocket_flwr.models.private.ClassificationModel` or
        :class:`~fedsocket_flwr.models.private.RetrievalModel`, by ``facts.kind``.

    Raises
    ------
    ConfigurationError
        For an unknown name, an argument that the model does not take or cannot use, or outputs that do not fit the task.
    """
    constructor = _constructor(name)
    _check_arguments(name, constructor, facts, arguments)
    try:
        model = constructor(facts, **arguments)
    except Exception as error:
        reason = _reason(error)
        raise ConfigurationError(f"private model {name!r} cannot be built with {dict(arguments)}: {reason}") from error
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"private model {name!r} gave a {type(model).__name__}, expected a torch.nn.Module")
    _check_outputs(name, model, facts)
    return model


def _constructor(name: str) -> Callable[..., Any]:
    if name not in PRIVATE_MODELS and not is_import_path(name):
        nearest = get_close_matches(name, PRIVATE_MODELS, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "expected one of these or package.module:Class"
        raise ConfigurationError(f"no private model is called {name!r}; {hint} (models: {', '.join(PRIVATE_MODELS)})")
    found: Callable[..., Any] = load(PRIVATE_MODELS.get(name, name), f"private model {name!r}")
    if not callable(found):
        raise ConfigurationError(f"private model {name!r} is a {type(found).__name__}, expected a class")
    return found


def _check_arguments(name: str, constructor: Callable[..., Any], facts: ModelFacts, arguments: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(constructor)
    except ValueError as error:
        raise ConfigurationError(f"private model {name!r} has a constructor without a signature ({error})") from error
    try:
        signature.bind(facts, **arguments)
    except TypeError as error:
        accepted = [str(parameter) for parameter in list(signature.parameters.values())[1:]]
        takes = f"it takes {', '.join(accepted)}" if accepted else "it takes no arguments"
        raise ConfigurationError(f"private model {name!r}: {error}; {takes}") from error


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"


def _check_outputs(name: str, model: nn.Module, facts: ModelFacts) -> None:
    """Run the model on a small batch in evaluation mode, and leave the mode of every part as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            outputs = _outputs(name, model, facts)
    except ConfigurationError:
        raise
    except Exception as error:
        shapes = {modality: (PROBE_ROWS, *shape) for modality, shape in facts.input_shapes.items()}
        raise ConfigurationError(f"private model {name!r} fails on inputs of shape {shapes}: {_reason(error)}") from error
    finally:
        for module, training in modes:
            module.training = training
    for source, output in outputs.items():
        _check_output(f"private model {name!r}: {source}", output, facts)
    widths = {source: output.shape[1] for source, output in outputs.items()}
    if len(set(widths.values())) > 1:
        raise ConfigurationError(f"private model {name!r}: embeddings differ in width: {widths}")


def _outputs(name: str, model: nn.Module, facts: ModelFacts) -> dict[str, Tensor]:
    inputs = {modality: _probe(modality, shape, facts) for modality, shape in facts.input_shapes.items()}
    if facts.kind == "classification":
        return {"the output": model(inputs)}
    if not isinstance(model, RetrievalModel):
        raise ConfigurationError(f"private model {name!r} of a retrieval task needs image_embeddings and text_embeddings")
    return {
        "image_embeddings": model.image_embeddings(inputs["image"]),
        "text_embeddings": model.text_embeddings(inputs["text"]),
    }


def _probe(modality: str, shape: tuple[int, ...], facts: ModelFacts) -> Tensor:
    if modality == "text" and facts.text_buckets > 0:
        return torch.ones((PROBE_ROWS, *shape), dtype=torch.int64)
    return torch.full((PROBE_ROWS, *shape), 0.5)


def _check_output(source: str, output: object, facts: ModelFacts) -> None:
    columns = facts.classes if facts.kind == "classification" else None
    expected = f"a floating-point tensor of shape ({PROBE_ROWS}, {columns or 'embedding'}) for {PROBE_ROWS} rows"
    if not isinstance(output, Tensor) or not output.is_floating_point():
        kind = f"a {output.dtype} tensor" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ConfigurationError(f"{source} is {kind}, expected {expected}")
    if output.ndim != 2 or output.shape[0] != PROBE_ROWS or columns not in (None, output.shape[1]):
        raise ConfigurationError(f"{source} has shape {tuple(output.shape)}, expected {expected}")
    if facts.kind == "retrieval":
        lengths = output.norm(dim=1)
        if bool(((lengths - 1).abs() > UNIT_TOLERANCE).any()):
            raise ConfigurationError(f"{source} has rows of length {lengths.tolist()}, expected unit length")
