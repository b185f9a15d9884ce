import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedsocket_flwr.config import InterfaceSettings
from fedsocket_flwr.datasets.backbones import Backbone
from fedsocket_flwr.datasets.interfaces import build_interface
from fedsocket_flwr.errors import ConfigurationError, DataError

MODEL = "shufflenet_v2_x0_5"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    from torchvision import models

    file = tmp_path_factory.mktemp("weights") / "weights.pt"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(models.get_model(MODEL).state_dict(), file)
    return file


def backbone(file, **options):
    return Backbone({"model": MODEL, "file": str(file), "size": 32} | options)


def test_pooled_features_of_a_file(weights, tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (3, 20, 20), dtype=np.uint8)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    network = backbone(weights)
    assert torch.equal(torch.get_rng_state(), state)
    found = network(pictures)
    assert found.shape == (3, 1024)
    assert found.dtype == np.float32
    np.testing.assert_allclose(network(pictures[1:2]), found[1:2], rtol=1e-4, atol=1e-5)
    save_file(torch.load(weights, weights_only=True), tmp_path / "weights.safetensors")
    other = backbone(tmp_path / "weights.safetensors")
    assert other.content == network.content
    np.testing.assert_array_equal(other(pictures), found)


def test_weights_are_part_of_the_digest(weights, tmp_path):
    changed = torch.load(weights, weights_only=True)
    changed["conv1.0.weight"][0, 0, 0, 0] += 1
    changed_file = tmp_path / "changed.pt"
    torch.save({"state_dict": changed}, changed_file)
    digests = [
        build_interface(InterfaceSettings(kind="backbone", options={"model": MODEL, "file": str(file)})).digest
        for file in (weights, changed_file)
    ]
    assert digests[0] != digests[1]
    assert backbone(weights).content != backbone(changed_file).content


def test_a_timm_model(tmp_path):
    import timm

    torch.save(timm.create_model("resnet10t", num_classes=5).state_dict(), tmp_path / "timm.pt")
    network = backbone(tmp_path / "timm.pt", library="timm", model="resnet10t")
    assert network(np.zeros((2, 32, 32, 3), np.uint8)).shape == (2, 512)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 45000000\n", "Git LFS pointer of 71 bytes"),
        (b"<html><body>404", "HTML page of 15 bytes"),
        (b"", r"empty \(0 bytes\)"),
        (b"junk" * 20, "no readable weights"),
        (b"PK\x03\x04 cut short", "no readable weights"),
    ],
)
@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_what_stands_in_for_weights(content, message, name, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        backbone(tmp_path / name)


def test_nothing_but_tensors_is_unpickled(tmp_path):
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {marker}",))

    torch.save({"conv1.0.weight": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(DataError, match="no readable weights"):
        backbone(tmp_path / "evil.pt")
    assert not marker.exists()


def test_weights_of_another_architecture(weights, tmp_path):
    with pytest.raises(DataError, match="another architecture than torchvision shufflenet_v2_x1_0"):
        backbone(weights, model="shufflenet_v2_x1_0")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(DataError, match="holds no state_dict of tensors, found list"):
        backbone(tmp_path / "list.pt")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "resnet19", "file": ""}, ConfigurationError, "unknown torchvision model 'resnet19'; the nearest is 'resnet1"),
        (
            {"file": "", "weights": "IMAGENET1K_V2"},
            ConfigurationError,
            r"torchvision's shufflenet_v2_x0_5 \(or hf:owner/name\) 'IMAGENET1K_V2'; the nearest is 'IMAGENET1K_V1'",
        ),
        (
            {"file": "", "weights": "best", "library": "timm", "model": "resnet10t"},
            ConfigurationError,
            "must be 'default' or hf:owner/name for timm, found 'best'",
        ),
        ({"file": "", "weights": "hf:no such name"}, ConfigurationError, "not the name of a repository"),
        ({"file": "absent.pt"}, DataError, "absent.pt: No such file"),
        ({"std": [0.2, 0.2]}, ConfigurationError, "three numbers each"),
    ],
)
def test_wrong_options(options, error, message, weights):
    with pytest.raises(error, match=message):
        backbone(**({"file": weights} | options))


def test_torchvisions_weights_by_name(weights, tmp_path, monkeypatch):
    """As torchvision's own cache holds them after a download; without network the message says what else there is."""
    from torchvision import models

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    pictures = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    published = models.get_model_weights(MODEL)["IMAGENET1K_V1"]
    (tmp_path / "checkpoints").mkdir()
    cached = tmp_path / "checkpoints" / published.url.rsplit("/", 1)[1]
    cached.write_bytes(weights.read_bytes())
    expected = backbone(weights)(pictures)
    for name in ("IMAGENET1K_V1", "default"):
        np.testing.assert_array_equal(backbone("", weights=name)(pictures), expected)
    cached.unlink()

    def no_network(*arguments, **keywords):
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    with pytest.raises(DataError, match=r"neither cached nor to be had \(no route to host\); give options.file"):
        backbone("", weights="IMAGENET1K_V1")


def test_a_picture_is_scaled_and_normalised(weights, monkeypatch):
    """White is 1: what the network is given of it is (1 - mean) / std, per colour."""
    network, seen = backbone(weights, size=4, mean=[0.1, 0.2, 0.3], std=[0.5, 0.25, 1]), []
    monkeypatch.setattr(network._network.network, "forward", lambda given: seen.append(given) or given.mean((2, 3)))
    found = network(np.full((1, 2, 2, 3), 255, np.uint8))
    np.testing.assert_allclose(found, [[1.8, 3.2, 0.7]], rtol=1e-5)
    assert seen[0].shape == (1, 3, 4, 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_what_the_cpu_gives(weights, monkeypatch):
    pictures = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    found = backbone(weights)(pictures)
    np.testing.assert_array_equal(backbone(weights)(pictures), found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    np.testing.assert_allclose(backbone(weights)(pictures), found, rtol=1e-3, atol=1e-4)


def test_hugging_faces_cache(weights, tmp_path):
    """In a process of its own: the cache's place is read when the library is imported."""
    snapshot = tmp_path / "hub" / "models--some--net" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "hub" / "models--some--net" / "refs").mkdir()
    (tmp_path / "hub" / "models--some--net" / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    save_file(torch.load(weights, weights_only=True), snapshot / "model.safetensors")
    code = (
        "from fedsocket_flwr.datasets.backbones import cached_file\n"
        "from fedsocket_flwr.errors import DataError\n"
        "print(cached_file('some/net').name)\n"
        "try: cached_file('other/net')\n"
        "except DataError as error: print(error)"
    )
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith("model.safetensors\nHugging Face's cache holds none of model.safetensors")
