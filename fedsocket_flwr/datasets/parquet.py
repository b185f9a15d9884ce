"""Parquet files as Hugging Face publishes a data set: shards called ``SPLIT-00000-of-00001.parquet``, in the folder or below."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsocket_flwr.datasets.sources import require_real_file
from fedsocket_flwr.errors import DataError


def shards(folder: Path, split: str) -> list[Path]:
    """Return the shards of a split in their order; none where the folder has no such file."""
    return sorted(folder.rglob(f"{split}-*.parquet"), key=lambda shard: shard.name)


def read_shards(files: Sequence[Path], columns: Sequence[str]) -> Mapping[str, list[Any]]:
    """Return the values of some columns, the shards one after the other.

    Raises
    ------
    DataError
        pyarrow is not installed, a shard cannot be read, or lacks a column; the shard is named.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(f"reading {files[0]} needs pyarrow: `pip install pyarrow` (extra `text`)") from error
    found: dict[str, list[Any]] = {column: [] for column in columns}
    for file in files:
        require_real_file(file)
        try:
            known = parquet.read_schema(file).names
            lacking = [column for column in columns if column not in known]
            if lacking:
                raise DataError(f"{file} has no column {lacking[0]!r} (it has {', '.join(known)})")
            table = parquet.read_table(file, columns=list(columns))
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{file} is not a parquet file that can be read: {error}") from error
        for column in columns:
            found[column] += table.column(column).to_pylist()
    return found
