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


@functools.cache
def code_digest() -> str:
    """Return a checksum over the package's Python files: equal digests run equal code."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
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
