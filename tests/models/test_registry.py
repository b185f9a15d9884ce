"""Building private models by name and by import path, and what is refused on the way."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.models.registry import PRIVATE_MODELS, ModelFacts, build_private_model

IMAGES = ModelFacts("classification", 3, {"image": (1, 8, 8)})
TEXTS = ModelFacts("classification", 4, {"text": (12,)}, text_buckets=64)
PAIRS = ModelFacts("retrieval", 0, {"image": (1, 8, 8), "text": (12,)}, text_buckets=64)
# A retrieval task whose classes are given, so that a classifier can be built for it.
REPRESENTED = ModelFacts("retrieval", 3, PAIRS.input_shapes, text_buckets=64)

USER_MODULE = """
import torch
from torch import nn
from torch.nn import functional

class Linear(nn.Module):
    def __init__(self, facts, *, scale=1.0):
        super().__init__()
        self.layer = nn.Linear(64, facts.classes)
        self.frozen = nn.Dropout(0.5).eval()
    def forward(self, inputs):
        return self.layer(self.frozen(inputs["image"].flatten(1)))

class NeedsDepth(Linear):
    def __init__(self, facts, *, depth):
        super().__init__(facts)

class Wide(Linear):
    def forward(self, inputs):
        return super().forward(inputs).repeat(1, 2)

class Flat(Linear):
    def forward(self, inputs):
        return super().forward(inputs)[:, 0]

class Predicted(Linear):
    def forward(self, inputs):
        return super().forward(inputs).argmax(1, keepdim=True)

class Pair(Linear):
    def forward(self, inputs):
        return super().forward(inputs), None

class Misfit(Linear):
    def forward(self, inputs):
        return self.layer(inputs["image"])

class Broken(Linear):
    def __init__(self, facts):
        raise KeyError("width")

def not_a_module(facts):
    return [facts]

def factory(facts, *, scale=1.0):
    return Linear(facts, scale=scale)

class Towers(nn.Module):
    def __init__(self, facts, *, image=8, text=8, length=1.0):
        super().__init__()
        self.images, self.texts, self.length = nn.Linear(64, image), nn.EmbeddingBag(64, text), length
    def image_embeddings(self, images):
        return self.length * functional.normalize(self.images(images.flatten(1)), dim=1)
    def text_embeddings(self, tokens):
        return functional.normalize(self.texts(tokens), dim=1)
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_models.py").write_text(USER_MODULE, encoding="utf-8")
    (tmp_path / "my_broken_models.py").write_text("import no_such_package\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    return "my_models"


def test_a_models_own_path_works_like_its_name(user_module: str) -> None:
    for name in ("Linear", "factory"):
        model = build_private_model(f"{user_module}:{name}", {"scale": 2.0}, IMAGES)
        assert model({"image": torch.zeros(5, 1, 8, 8)}).shape == (5, 3)
    for path in PRIVATE_MODELS.values():
        assert path.startswith("fedsocket_flwr.models.")


def test_the_trial_leaves_every_part_in_its_mode(user_module: str) -> None:
    model = build_private_model(f"{user_module}:Linear", {}, IMAGES)
    assert model.training
    assert [part.training for _, part in model.named_children()] == [True, False]


def test_the_trial_does_not_touch_batch_statistics() -> None:
    model = build_private_model("image_resnet", {}, IMAGES)
    assert [int(value) for name, value in model.named_buffers() if name.endswith("num_batches_tracked")] == [0] * 6


@pytest.mark.parametrize(
    ("name", "arguments", "facts", "message"),
    [
        ("image_cnnn", {}, IMAGES, "no private model is called 'image_cnnn'; did you mean 'image_cnn'"),
        ("perceiver", {}, IMAGES, "expected one of these or package.module:Class.*image_cnn, image_mlp"),
        ("nowhere.models:Net", {}, IMAGES, "cannot import 'nowhere.models'.*No module named 'nowhere'"),
        (":Net", {}, IMAGES, "cannot import ''"),
        ("my_broken_models:Net", {}, IMAGES, "cannot import 'my_broken_models'.*no_such_package"),
        ("my_models:Liner", {}, IMAGES, "my_models has no 'Liner'; did you mean 'Linear'"),
        ("image_cnn", {"widht": 4}, IMAGES, "'image_cnn'.*unexpected keyword argument 'widht'; it takes width: int = 16, hidden"),
        ("my_models:NeedsDepth", {}, IMAGES, "missing a required.*'depth'; it takes depth"),
        ("my_models:not_a_module", {"a": 1}, IMAGES, "it takes no arguments"),
        ("builtins:dict", {}, IMAGES, "without a signature"),
        ("image_cnn", {"width": 0}, IMAGES, "'image_cnn' cannot be built with {'width': 0}: width must be.*at least 1, found 0"),
        ("image_mlp", {"hidden": "64"}, IMAGES, "hidden must be a whole number.*'64'"),
        ("image_resnet", {"width": True}, IMAGES, "width must be a whole number.*True"),
        ("text_bag", {"layers": -1}, TEXTS, "layers must be.*at least 0, found -1"),
        ("image_text_towers", {"image": "cn"}, PAIRS, "image must be one of cnn, mlp, found 'cn'; did you mean 'cnn'"),
        ("image_text_towers", {"width": 6}, PAIRS, "width must be a multiple of 4, found 6"),
        ("image_cnn", {}, TEXTS, "reads the modality 'image', the task has text"),
        ("image_cnn", {}, ModelFacts("classification", 3, {"image": (1, 3, 8)}), "at least 4 x 4, found the shape \\(1, 3, 8\\)"),
        ("image_resnet", {}, ModelFacts("classification", 3, {"image": (64,)}), "found the shape \\(64,\\)"),
        ("text_bigru", {}, ModelFacts("classification", 3, {"text": (300,)}), "token ids.*0 buckets"),
        ("image_cnn", {}, PAIRS, "'image_cnn' cannot be built.*the model is a classifier, the task is retrieval"),
        ("my_models:Linear", {}, REPRESENTED, "needs image_embeddings and text_embeddings"),
        ("my_models:Broken", {}, IMAGES, "cannot be built.*KeyError: 'width'"),
        ("my_models:not_a_module", {}, IMAGES, "gave a list, expected a torch.nn.Module"),
        ("my_models:Wide", {}, IMAGES, "the output has shape \\(2, 6\\), expected.*\\(2, 3\\) for 2 rows"),
        ("my_models:Flat", {}, IMAGES, "the output has shape \\(2,\\)"),
        ("my_models:Predicted", {}, IMAGES, "the output is a torch.int64 tensor"),
        ("my_models:Pair", {}, IMAGES, "the output is a tuple, expected a floating-point tensor"),
        ("my_models:Misfit", {}, IMAGES, "fails on inputs of shape {'image': \\(2, 1, 8, 8\\)}: RuntimeError"),
        ("my_models:Towers", {"text": 9}, PAIRS, "embeddings differ in width: {'image_embeddings': 8, 'text_embeddings': 9}"),
        ("my_models:Towers", {"length": 2.0}, PAIRS, "image_embeddings has rows of length.*expected unit length"),
    ],
)
def test_what_cannot_be_used_is_refused_and_says_why(
    user_module: str, name: str, arguments: dict[str, Any], facts: ModelFacts, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_private_model(name, arguments, facts)


def test_a_user_model_for_retrieval(user_module: str) -> None:
    model: Any = build_private_model(f"{user_module}:Towers", {}, PAIRS)
    assert isinstance(model, nn.Module)
    assert model.text_embeddings(torch.ones(3, 12, dtype=torch.int64)).shape == (3, 8)
