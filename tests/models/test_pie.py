"""The paper's private models: layers by hand, sizes against the published counts, and what they must not depend on."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsocket_flwr.datasets.inputs import token_ids
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.models.pie import PIE
from fedsocket_flwr.models.registry import ModelFacts, build_private_model
from fedsocket_flwr.models.resnet import ResNet18Trunk

TINY_IMAGE = {"width": 4, "embedding": 16}
TINY_TEXT = {"word_width": 12, "embedding": 16}
MODELS = {
    "resnet18_pie": (ModelFacts("classification", 3, {"image": (1, 16, 16)}), TINY_IMAGE),
    "bigru_pie": (ModelFacts("classification", 3, {"text": (12,)}, text_buckets=64), TINY_TEXT),
    "flickr_towers": (
        ModelFacts("retrieval", 0, {"image": (3, 64, 64), "text": (12,)}, text_buckets=64),
        TINY_IMAGE | TINY_TEXT,
    ),
}
RESNET_18 = 11_176_512
GRU_256 = 2 * 3 * (128 * 300 + 128 * 128 + 2 * 128)


def build(name, facts=None, seed=0, **arguments):
    known, tiny = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_private_model(name, arguments or tiny, facts or known)


def pie_size(part, embedding, attention):
    return part * attention + attention + part * embedding + embedding + 2 * embedding


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def tokens(rows, length=12):
    found = torch.zeros(rows, length, dtype=torch.int64)
    for row in range(rows):
        found[row, : 2 + row % 5] = torch.randint(1, 64, (2 + row % 5,), generator=torch.Generator().manual_seed(row))
    return found


def test_pie_by_hand():
    """Scores tanh(1), tanh(0) over the parts (1, 0) and (0, 1) under V = (1, 0) and w = 1."""
    pie = PIE(2, 2, 1)
    with torch.no_grad():
        pie.attention[0].weight.copy_(torch.tensor([[1.0, 0.0]]))
        pie.attention[2].weight.fill_(1)
        pie.map.weight.copy_(torch.eye(2))
        pie.map.bias.zero_()
    attended = np.exp([np.tanh(1), 0])
    attended /= attended.sum()
    expected = np.array([3.0, 1.0]) + 1 / (1 + np.exp(-attended))
    expected = (expected - expected.mean()) / np.sqrt(expected.var() + 1e-5)
    found = pie(torch.tensor([[3.0, 1.0]]), torch.eye(2)[None])
    np.testing.assert_allclose(found.detach()[0], expected, rtol=1e-5)
    alone = pie(torch.tensor([[3.0, 1.0]]), torch.eye(2)[None], torch.tensor([[True, False]]))
    torch.testing.assert_close(alone, pie(torch.tensor([[3.0, 1.0]]), torch.tensor([[[0.0, 1.0]]])))


def test_the_trunk_is_torchvisions_resnet_18():
    from torchvision.models import resnet18

    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs, ours = resnet18(), ResNet18Trunk(3)
    theirs.fc = nn.Identity()
    weights = theirs.state_dict()
    ours.load_state_dict(dict(zip(ours.state_dict(), weights.values(), strict=True)))
    assert size(ours) == RESNET_18
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for network in (theirs, ours):
        network.eval()
    torch.testing.assert_close(ours(images).mean((2, 3)), theirs(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("small", "side"), [(True, 4), (False, 1)])
def test_the_stem(small, side):
    trunk = ResNet18Trunk(3, width=2, small_pictures=small)
    assert trunk(torch.rand(2, 3, 32, 32)).shape == (2, 16, side, side)
    assert size(ResNet18Trunk(3, small_pictures=small)) == RESNET_18 - small * 3 * 64 * (49 - 9)


def test_the_published_sizes():
    """FedSocket v1, Tables 22 and 23; docs/paper_models.md says what is counted."""
    q = 913_003
    cifar = size(build("resnet18_pie", ModelFacts("classification", 100, {"image": (3, 32, 32)}), embedding=256))
    assert cifar == RESNET_18 - 7_680 + 512 * 256 + 256 + pie_size(512, 256, 256) + 256 * 100 + 100 == 11_589_028
    assert round((cifar + RESNET_18 + q) / 1e6, 3) == 23.679
    ag_facts = ModelFacts("classification", 4, {"text": (64,)}, text_buckets=20_000)
    ag = size(build("bigru_pie", ag_facts, embedding=256))
    assert ag == 20_000 * 300 + GRU_256 + pie_size(300, 256, 256) + 256 * 4 + 4 == 6_485_892
    interface = 20_000 * 300
    assert round((ag + interface + q) / 1e6, 3) == 13.399
    flickr_facts = ModelFacts("retrieval", 0, {"image": (3, 224, 224), "text": (64,)}, text_buckets=20_000)
    flickr = size(build("flickr_towers", flickr_facts, embedding=256))
    image = RESNET_18 + 512 * 256 + 256 + pie_size(512, 256, 256)
    assert flickr == image + 6_000_000 + GRU_256 + pie_size(300, 256, 256) == 18_055_872


def loss_of(name, model, items):
    if name == "flickr_towers":
        images = torch.rand(len(items), 3, 64, 64, generator=torch.Generator().manual_seed(0))
        found = model.image_embeddings(images), model.text_embeddings(tokens(len(items)))
        for rows in found:
            assert rows.shape == (len(items), 16)
            torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(items)))
        return functional.cross_entropy(15 * found[0] @ found[1].T, torch.arange(len(items)))
    if name == "bigru_pie":
        return functional.cross_entropy(model({"text": tokens(len(items))}), items)
    images = torch.rand(len(items), 1, 16, 16, generator=torch.Generator().manual_seed(0))
    return functional.cross_entropy(model({"image": images}), items)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_learns_with_every_parameter_and_reduces_its_loss(name):
    model, losses = build(name), []
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(4):
        loss = loss_of(name, model, torch.arange(12) % 3)
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) and bool(p.grad.any()) for p in model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_seed_alone_decides_the_parameters(name):
    first, again, other = (build(name, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_padding_neither_counts_nor_learns():
    model = build("bigru_pie")
    short = torch.tensor([[5, 9, 7], [5, 0, 0]])
    padded = functional.pad(short, (0, 9))
    torch.testing.assert_close(model({"text": padded}), model({"text": short}))
    torch.testing.assert_close(model({"text": padded[1:]}), model({"text": padded})[1:])
    logits = model({"text": torch.tensor([[0] * 12, [63] + [0] * 11])})
    logits.sum().backward()
    assert bool(logits.isfinite().all())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    assert bool((model.encoder.words.weight[0] == 0).all())
    assert bool((model.encoder.words.weight.grad[0] == 0).all())


def test_words_start_from_a_file(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("cat 1 2 3 4\ndog 5 6 7 8\n", encoding="utf-8")
    facts = ModelFacts("classification", 3, {"text": (4,)}, text_buckets=1000)
    model = build("bigru_pie", facts, embedding=8, file=str(file))
    ids = token_ids(["dog cat bird"], 4, 1000)[0]
    rows = model.encoder.words.weight.detach()[ids]
    np.testing.assert_array_equal(rows, [[5, 6, 7, 8], [1, 2, 3, 4], [0, 0, 0, 0], [0, 0, 0, 0]])
    # Of words with one id the first of the file counts.
    one_id = ModelFacts("classification", 3, {"text": (4,)}, text_buckets=3)
    rows = build("bigru_pie", one_id, embedding=8, file=str(file)).encoder.words.weight.detach()
    np.testing.assert_array_equal(rows, [[0, 0, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embedding": 7}, "embedding must be even"),
        ({"word_width": 0}, "word_width must be a whole number of at least 1"),
        ({"vectors": "glove", "embedding": 8}, "unknown word vectors 'glove'"),
        ({"index": "x"}, "the private text model needs either `file`"),
        ({"file": "absent.txt"}, "absent.txt: No such file"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        build("bigru_pie", **arguments)
