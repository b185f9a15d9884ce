"""A run folder as a run of eight rounds leaves it, made up: three tasks, ten clients, plain or hostile names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROUNDS = 8
LONG = "x" * 300
DEMO = {
    "digits": ("classification", {"digits-cnn": "image_cnn", "digits-mlp": "image_mlp", "digits-resnet": "image_resnet"}),
    "news": ("classification", {"news-bag": "text_bag", "news-bigru": "text_bigru", "news-deep-bag": "text_bag"}),
    "glyphs": (
        "retrieval",
        {f"glyphs-{font}": "image_text_towers" for font in ("sans", "bold", "serif", "mono")},
    ),
}
HOSTILE = {
    "News": ("classification", {"a_b%": "image_cnn", "x|y": "image_mlp", "ba$$in": "image_resnet"}),
    "news": ("classification", {"新闻 客户": "text_bag", "../up": "text_bigru", LONG: "text_bag"}),
    "图 & $x_{1}$ <b>": ("retrieval", {"Glyphs": "t", "glyphs": "t", LONG + "y": "t", r"\frac{1}": "t"}),
}
CLASSES = {"digits": 10, "news": 5, "News": 10}
START = {"private": 0.45, "q": 0.3, "joint": 0.5}
CEILING = {"private": 0.83, "q": 0.91, "joint": 0.924}
WHOLE_Q = 913_003 * 4

PARAMETERS = {"q_parameters": 48 * 256 + 1}


def _metrics(kind: str, value: float) -> dict[str, float]:
    if kind == "classification":
        return {"accuracy": value, "macro_f1": value * 0.97}
    recalls = {
        f"{way}_r{k}": min(1.0, value * factor) for way in ("i2t", "t2i") for k, factor in ((1, 0.5), (5, 0.8), (10, 0.95))
    }
    return {**recalls, "mean_r": sum(recalls.values()) / 6}


def _value(generator: np.random.Generator, endpoint: str, model_round: int) -> float:
    reached = 1 - np.exp(-model_round / 2.5)
    return float(START[endpoint] + (CEILING[endpoint] - START[endpoint]) * reached + generator.normal(0, 0.012))


def _dev(tasks: dict[str, Any], model_round: int, without: set[str]) -> dict[str, Any]:
    generator = np.random.default_rng(model_round)
    clients: dict[str, dict[str, float]] = {}
    means: dict[str, Any] = {}
    for task, (kind, members) in tasks.items():
        for client in sorted(set(members) - without):
            found = {
                f"{endpoint}.{metric}": value
                for endpoint in START
                for metric, value in _metrics(kind, _value(generator, endpoint, model_round)).items()
            }
            weights = {"joint.rho": float(2.0 ** generator.integers(-3, 3))}
            if kind == "retrieval":
                weights = {"joint.i2t": generator.integers(3, 8) / 10, "joint.t2i": generator.integers(3, 8) / 10}
            clients[client] = {**found, **weights}
        measured = [clients[client] for client in members if client in clients]
        means[task] = {
            "clients": len(measured),
            **{
                endpoint: {
                    metric: float(np.mean([client[f"{endpoint}.{metric}"] for client in measured]))
                    for metric in _metrics(kind, 0.5)
                }
                for endpoint in START
            },
        }
    return {"round": model_round, "clients": clients, "tasks": means}


def history_rows(tasks: dict[str, Any] = DEMO, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """One client has no DEV, one update of round 3 is refused, one client is missing in round 5."""
    everyone = [client for _, members in tasks.values() for client in members]
    names = list(tasks)
    without = {everyone[1]}
    rows = []
    for number in range(1, rounds + 1):
        generator = np.random.default_rng(1000 + number)
        missing = everyone[4:5] if number == 5 else []
        answered = [client for client in everyone if client not in missing]
        refused = dict.fromkeys(everyone[5:6], "NaN in block 'adapter|text'\nof its update") if number == 3 else {}
        conflicts = {
            f"conflict.residual.{a}.{b}": float(generator.normal(0.02, 0.05)) for i, a in enumerate(names) for b in names[i + 1 :]
        }
        row: dict[str, Any] = {
            "phase": "train",
            "round": number,
            "seconds": 7.0 + number / 10,
            "asked": everyone,
            "answered": answered,
            "refused": refused,
            "missing": missing,
            "bytes": {"up": 1_296_000 * 9, "down": 1_296_000 * 10, "up_full": WHOLE_Q * len(answered), "down_full": WHOLE_Q * 10},
            "clients": {client: {"loss.private": 1.0 / number, "loss.q": 0.8 / number, "seconds": 0.7} for client in answered},
            "strategy": {**{f"gate.{task}": 0.5 + 0.01 * number * (i - 1) for i, task in enumerate(names)}, **conflicts},
        }
        if number > 1:
            row["dev"] = _dev(tasks, number - 1, without)
        rows.append(row)
    return rows


def closing_row(tasks: dict[str, Any] = DEMO, rounds: int = ROUNDS) -> dict[str, Any]:
    everyone = [client for _, members in tasks.values() for client in members]
    dev = _dev(tasks, rounds, {everyone[1]})
    return {"phase": "close", "round": rounds, "seconds": 1.2, "asked": everyone, "answered": everyone, "dev": dev}


def _test(tasks: dict[str, Any]) -> dict[str, Any]:
    generator = np.random.default_rng(5)
    clients: dict[str, Any] = {}
    for task, (kind, members) in tasks.items():
        for client in members:
            best, last = (
                {e: _metrics(kind, CEILING[e] + float(generator.normal(0, 0.02)) - lower) for e in START} for lower in (0.0, 0.01)
            )
            weights = {"joint.rho": 0.5, "last.rho": 1.0} if kind == "classification" else {"joint.i2t": 0.4, "joint.t2i": 0.6}
            rounds = {"private.round": 7, "q.round": 8, "joint.round": 8}
            clients[client] = {"task": task, "best": best, "last": last, "choices": {**rounds, **weights}}
    return {"clients": clients}


def _splits(tasks: dict[str, Any]) -> dict[str, Any]:
    generator = np.random.default_rng(9)
    found: dict[str, Any] = {}
    for task, (kind, members) in tasks.items():
        clients: dict[str, Any] = {}
        for client in members:
            counts = (
                (generator.dirichlet([0.4] * CLASSES.get(task, 5)) * 500).astype(int).tolist() if kind == "classification" else []
            )
            size = sum(counts) if counts else 469
            clients[client] = {
                "train": list(range(size)),
                "dev": list(range(40)),
                "test": list(range(100)),
                "class_counts": {"train": counts},
            }
        classes = [f"class {c}" for c in range(CLASSES.get(task, 5))] if kind == "classification" else []
        found[task] = {"classes": classes, "clients": clients}
    return {"tasks": found}


def make_run(folder: Path, tasks: dict[str, Any] = DEMO, rounds: int = ROUNDS, finished: bool = True) -> Path:
    """Write the folder of a run over ``rounds`` rounds of eight; an unfinished one has neither closing line nor TEST."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "run": {"name": "demo", "method": "fedsocket", "seed": 101, "rounds": ROUNDS},
        "interfaces": {"image": {"kind": "pixels", "width": 256, "norm": 16.0, "seed": 7, "options": {"size": 28}}},
        "tasks": {
            task: {
                "dataset": "made_up",
                "kind": kind,
                "clients": [{"name": client, "model": model, "arguments": {}} for client, model in members.items()],
            }
            for task, (kind, members) in tasks.items()
        },
        "exchange": {"payload": "owned", "sharing": "shared", "isolated": []},
        "training": {"warm_up_epochs": 5, "teaching": {"distil_private": 0.5, "fusion": 0.25}},
    }
    rows = history_rows(tasks, rounds) + ([closing_row(tasks, rounds)] if finished else [])
    write = {
        "config.yaml": yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        "run.json": json.dumps({"run": "demo-1a2b", "engine": "inprocess", "created": "2026-01-02T03:04:05Z"} | PARAMETERS),
        "environment.json": json.dumps({"python": "3.11", "interfaces": {"image": {"kind": "pixels", "width": 256}}}),
        "splits.json": json.dumps(_splits(tasks), ensure_ascii=False),
        "history.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
    }
    if finished:
        write["test.json"] = json.dumps(_test(tasks), ensure_ascii=False)
    for name, text in write.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
