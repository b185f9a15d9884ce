"""How many parameters and FLOPs the paper's private models have here, beside what the paper says (v1, Tables 22 and 23).

FLOPs are of one row, counted by torch's counter, which knows convolutions and matrix products but no GRU.

Run ``python benchmarks/paper_models.py [--words 20000]``; it prints a Markdown table in a few seconds.
"""

import argparse
from typing import Any

import torch

from fedsocket_flwr.experiments.profile import flops, parameters
from fedsocket_flwr.models.predictor import PredictorShape, SharedPredictor, TaskShape
from fedsocket_flwr.models.registry import ModelFacts, build_private_model
from fedsocket_flwr.models.resnet import ResNet18Trunk

TASKS = (
    TaskShape("cifar100", "classification", ("image",), 100),
    TaskShape("agnews", "classification", ("text",), 4),
    TaskShape("flickr30k", "retrieval", ("image", "text")),
)
WORD_WIDTH = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=20_000, help="rows of each word table")
    words = parser.parse_args().words
    text: dict[str, tuple[int, ...]] = {"text": (64,)}
    pair: dict[str, tuple[int, ...]] = {"image": (3, 224, 224), "text": (64,)}
    cifar = build_private_model("resnet18_pie", {}, ModelFacts("classification", 100, {"image": (3, 32, 32)})).eval()
    news = build_private_model("bigru_pie", {}, ModelFacts("classification", 4, text, words)).eval()
    flickr: Any = build_private_model("flickr_towers", {}, ModelFacts("retrieval", 0, pair, words)).eval()
    interface, vectors = ResNet18Trunk(3).eval(), words * WORD_WIDTH
    q = parameters(SharedPredictor(PredictorShape(256, 48, TASKS, {"image": 256, "text": 256})))
    large, small = torch.rand(1, 3, 224, 224), torch.rand(1, 3, 32, 32)
    frozen, tower = flops(lambda: interface(large)), flops(lambda: flickr.image_embeddings(large))
    both = parameters(interface) + vectors
    rows = [
        ("CIFAR-100 Private", parameters(cifar), "", flops(lambda: cifar({"image": small})), ""),
        (
            "CIFAR-100 Joint",
            parameters(cifar) + parameters(interface) + q,
            "23.679 M",
            flops(lambda: cifar({"image": small})) + frozen,
            "4.7574 G",
        ),
        ("AG News Private", parameters(news), "", None, ""),
        ("AG News Joint", parameters(news) + vectors + q, "13.401 M", None, "0.0067 G"),
        ("Flickr30k Private", parameters(flickr), "18.07 M", tower, "3.64 G"),
        ("Flickr30k Joint", parameters(flickr) + both + q, "36.15 M", tower + frozen, "7.27 G"),
    ]
    print("| model | parameters | paper | FLOPs | paper |\n|---|---:|---:|---:|---:|")
    for name, size, published, operations, their_operations in rows:
        counted = "" if operations is None else f"{operations / 1e9:.4f} G"
        print(f"| {name} | {size:,} | {published} | {counted} | {their_operations} |")
    print(f"\nOf these: Q {q:,}, frozen ResNet-18 {parameters(interface):,}, frozen word vectors {vectors:,}.")


if __name__ == "__main__":
    main()
