"""Carry out ``wearable.yaml`` in this process, follow it with a callback, and use what was trained."""

import sys
from pathlib import Path

import fedsocket_flwr
from wearable.dev_log import DevLog
from wearable.recordings import read

HERE = Path(__file__).parent


def main(out: Path) -> None:
    """Write the run folder ``out`` and beside it the callback's file."""
    callback = DevLog(out.with_name(f"{out.name}-dev.csv"))
    run = fedsocket_flwr.run(HERE / "wearable.yaml", out=out, callbacks=[callback])
    print(run.summary["endpoints"]["activity"])
    signals = read(None, {"rows": 3, "seed": 1}).raw["accelerometer"]
    print(run.predictor("anna", "joint").classes({"accelerometer": signals}))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/wearable"))
