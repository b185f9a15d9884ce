"""Progress of the interface features: a bar on a terminal, one whole line for each finished modality elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Progress = Callable[[str, int, int], None]


@contextmanager
def feature_progress(stream: TextIO) -> Iterator[Progress]:
    """Yield what is to be told (what is computed, rows done, rows in all) after each batch."""
    if not stream.isatty():
        yield lambda what, done, total: _line(stream, what, done, total)
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(file=stream), transient=True) as bars:
        running: dict[str, int] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in running:
                running[what] = int(bars.add_task(f"features of {what}", total=total))
            bars.update(running[what], completed=done)  # type: ignore[arg-type]

        yield tell


def _line(stream: TextIO, what: str, done: int, total: int) -> None:
    if done == total:
        stream.write(f"features of {what}: {total} rows computed\n")
        stream.flush()
