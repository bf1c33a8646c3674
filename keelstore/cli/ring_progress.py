"""Progress of long work: one line on a terminal, nothing elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressLine:
    """Shows what is being done and how far it is. With ``is_verbose`` also a plain line for each step, with its time."""

    def __init__(self, stream: TextIO, is_verbose: bool = False):
        self._stream, self._is_verbose = stream, is_verbose
        self._is_shown = stream.isatty() and not is_verbose
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._step, self._began = "", time.monotonic()

    def __enter__(self) -> ProgressLine:
        if self._is_shown:
            from rich.console import Console  # noqa: PLC0415 - costs time that only a terminal is worth
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415
            self._progress = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
                                      console=Console(file=self._stream), transient=True)
            self._progress.start()
            self._task = self._progress.add_task("", total=1.0)
        return self

    def update(self, what: str, share: float) -> None:
        """What is being done, and how much of the whole is done, 0 to 1."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=what, completed=share)
        if self._is_verbose and what != self._step:
            print(f"{time.monotonic() - self._began:8.3f} s  {what}", file=self._stream)
        self._step = what

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()
