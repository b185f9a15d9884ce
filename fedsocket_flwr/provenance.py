"""What code a process runs, and on what: for the check between nodes and for the run's record."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("fedsocket-flwr", "flwr", "numpy", "torch", "ray", "scikit-learn", "scipy", "flwr-datasets", "safetensors")


WORKSTATION_ONLY = ("experiments/", "cli.py", "cli_parser.py")
"""What is only typed at a workstation: Flower's bundle goes without it, and no run depends on it."""


@functools.cache
def code_digest() -> str:
    """Return a checksum over the Python files that a run depends on: equal digests run equal code."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in root.rglob("*.py")):
        if not name.startswith(WORKSTATION_ONLY):
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def environment() -> dict[str, Any]:
    """Return versions and machine, for ``environment.json``."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "packages": versions,
        "code": code_digest(),
    }
