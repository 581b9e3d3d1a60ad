"""A directory to work in that is kept elsewhere."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfcollective.files import _remote as remote
from tfcollective.files._facts import FileFacts, local_facts
from tfcollective.files._places import SCRATCH_PREFIX, Place, is_url


class Workspace:
    """A directory to work in that is kept at a ``place``: that itself, or a local one whose files are moved there."""

    def __init__(self, place: Place) -> None:
        self._url = str(place) if is_url(place) else None
        self._directory = Path(place) if self._url is None else None
        self._known: dict[str, FileFacts] = {}  # what is the same there and here

    @property
    def remote(self) -> bool:
        """True if the place is a URL."""
        return self._url is not None

    @property
    def directory(self) -> Path:
        """The local directory to read and write. For a URL it holds only what was fetched."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
        return self._directory

    def fetch(self, names: Iterable[str]) -> None:
        """Brings files, by their names below the place. Raises FileNotFoundError or OSError."""
        if self._url is None:
            return
        for name in names:
            remote.download(f"{self._url}/{name}", self.directory / name)
            self._known[name] = local_facts(self.directory / name)

    def push(self) -> None:
        """Moves what was written since the last time, and removes what was deleted here. To be called when no file is
        half written. Raises OSError that names the file; what is there already stays."""
        if self._url is None or self._directory is None:
            return
        here = {str(path.relative_to(self.directory)): local_facts(path) for path in self._files()}
        changed = [name for name, facts in here.items() if self._known.get(name) != facts]
        # TensorFlow's file "checkpoint" names others, and is only true once they are there.
        for name in sorted(changed, key=lambda name: (Path(name).name == "checkpoint", here[name].modified_ns)):
            remote.upload(self.directory / name, f"{self._url}/{name}")
            self._known[name] = here[name]
        for name in [name for name in self._known if name not in here]:
            remote.remove(f"{self._url}/{name}")
            del self._known[name]

    def close(self) -> None:
        """Removes a local directory that stands for another. What was not pushed is lost."""
        if self._url is not None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
            self._known.clear()

    def _files(self) -> Iterator[Path]:
        for path in self.directory.rglob("*"):
            hidden = any(part.startswith(".") for part in path.relative_to(self.directory).parts)
            if not hidden and path.is_file():
                yield path

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()
