"""A data set: what a wrist-worn accelerometer records at rest, in a walk and in a tremor."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.options import at_least, choose_options

# Activity -> cycles in a recording.
ACTIVITIES = {"rest": 0, "walk": 3, "tremor": 7}
WEARERS = ("wearer 1", "wearer 2", "wearer 3")


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Make recordings of three axes; another data set would read its files here.

    Options: ``rows`` (120), ``steps`` of a recording (32), ``noise`` (0.5), ``seed`` (0).
    """
    chosen = choose_options("data set 'recordings'", options, {"rows": 120, "steps": 32, "noise": 0.5, "seed": 0})
    at_least("data set 'recordings'", chosen, rows=1, steps=16)
    generator = np.random.default_rng(chosen["seed"])
    rows, steps = chosen["rows"], chosen["steps"]
    labels = generator.integers(0, len(ACTIVITIES), rows)
    cycles = np.array(list(ACTIVITIES.values()))[labels]
    phase = generator.uniform(0, 2 * np.pi, (rows, 1, 3))
    angle = 2 * np.pi * cycles[:, None, None] * np.arange(steps)[None, :, None] / steps
    signals = np.sin(angle + phase) + chosen["noise"] * generator.normal(size=(rows, steps, 3))
    return Corpus(
        name="recordings",
        kind="classification",
        raw={"accelerometer": signals.astype(np.float32)},
        labels=labels,
        classes=tuple(ACTIVITIES),
        columns={"wearer": [WEARERS[row % len(WEARERS)] for row in range(rows)]},
    )
