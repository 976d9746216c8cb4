"""An inspection of a derived image that reads only what it has beyond the good one.

Inspect itself is the shipped one, on the digest of a real image in a real engine. Two things are saved. The good
image's file system is read once, and a derived image's own layer, the very bytes that the engine was given, is read by
the same reader and laid over it by the rules of OCI layers. And where another check than *extensions* has to object,
what the extensions' process said in the good image stands for what it would say now: the best that it could say, so
that a refusal is one in any case. `--full` saves neither, and each run compares a sample with it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import posixpath
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from unittest import mock

from seatrial.model.values import digest_of
from seatrial.ports import layers, rootfs
from seatrial.ports.images import DockerImages, ImageFacts, OneRun
from seatrial.ports.rootfs import RootFs, Wants
from seatrial.stages.inspect import called
from seatrial.stages.inspect import image as inspect_module
from tests.faults.derive import WHITEOUT

CHUNK = 1 << 20
SHELLS = ("/bin/bash", "/bin/sh")


class LaidOver(bytes):
    """A block of a stream that stands for all of it: what is known of the good image, and a derived image's layer."""

    good: Reading
    layer: bytes


def laid_over(good: Reading, layer: bytes) -> LaidOver:
    """Return the block; its own bytes say nothing."""
    block = LaidOver()
    block.good, block.layer = good, layer
    return block


@dataclass(frozen=True, slots=True)
class Reading:
    """What the shipped readers made of the good image."""

    root: RootFs
    layers: tuple[layers.Layer, ...]


def read_laid_over(chunks: Iterable[bytes], wants: Wants) -> RootFs:
    """Read a stream as ever; of a derived image, read the layer and lay it over the good image."""
    stream = iter(chunks)
    block = next(stream, b"")
    if not isinstance(block, LaidOver):
        return rootfs.read_rootfs(itertools.chain((block,), stream), wants)
    return lay_over(block.good.root, block.layer, wants) if block.layer else copied(block.good.root)


def layers_laid_over(chunks: Iterable[bytes], keep: Callable[[str, int], bool]) -> tuple[layers.Layer, ...]:
    """Read an archive as ever; of a derived image, read the last layer and put it on top of the good image's."""
    stream = iter(chunks)
    block = next(stream, b"")
    if not isinstance(block, LaidOver):
        return layers.read_layers(itertools.chain((block,), stream), keep)
    own = layers.read_layers([archived(block.layer)], keep) if block.layer else ()
    return (*block.good.layers, *own)


def archived(layer: bytes) -> bytes:
    """Return an archive as an engine saves it, with one layer alone."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, data in (("layer.tar", layer), ("manifest.json", b'[{"Layers": ["layer.tar"]}]')):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return target.getvalue()


def copied(root: RootFs) -> RootFs:
    """Return a file system of the same entries, with nothing resolved yet."""
    return RootFs(dict(root.entries), dict(root.kept))


def lay_over(base: RootFs, layer: bytes, wants: Wants) -> RootFs:
    """Return the file system that a container of base and layer sees.

    Raises:
        ValueError: the layer takes the first name of a hard link away, which would change the others.
    """
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        told = {posixpath.normpath("/" + name) for name in tar.getnames()}
    new = rootfs.read_rootfs((layer[at : at + CHUNK] for at in range(0, len(layer), CHUNK)), wants)
    gone = {path for path in told if posixpath.basename(path).startswith(WHITEOUT)}
    hidden = {posixpath.join(posixpath.dirname(path), posixpath.basename(path)[len(WHITEOUT) :]) for path in gone}
    entries = {path: entry for path, entry in base.entries.items() if not _under(path, hidden)}
    lost = {path for path, entry in base.entries.items() if path in hidden or (path in told and entry.kind == "file")}
    if any(entry.first in lost for entry in base.entries.values() if entry.first):
        raise ValueError("the layer changes the first name of a hard link")
    entries |= {
        path: entry for path, entry in new.entries.items() if path not in gone and (path in told or path not in entries)
    }
    kept = {path: data for path, data in base.kept.items() if path in entries and path not in told}
    kept |= {path: data for path, data in new.kept.items() if path not in gone}
    ordered = sorted(entries.items(), key=lambda item: item[0].split("/"))  # as the engine walks a file system
    return RootFs(dict(ordered), kept)


def _under(path: str, hidden: set[str]) -> bool:
    while path != "/":
        if path in hidden:
            return True
        path = posixpath.dirname(path)
    return False


@dataclass
class CheapImages:
    """The engine's answers about one derived image, with what is known of the good one."""

    real: DockerImages
    good: str
    """The good image's digest."""
    reading: Reading
    data: bytes
    """The derived image's own layer; empty when it has none."""
    known: Known
    runs: bool
    """Run commands in the derived image; else say what they said in the good one."""

    def facts(self, image: str) -> ImageFacts:
        """Return the configuration as the engine has it."""
        return self.real.facts(image)

    @contextlib.contextmanager
    def export(self, image: str) -> Iterator[Iterable[bytes]]:
        """Give the good file system with the layer over it."""
        yield (laid_over(self.reading, self.data),)

    @contextlib.contextmanager
    def archive(self, image: str) -> Iterator[Iterable[bytes]]:
        """Give the good image's layers with the layer on top."""
        yield (laid_over(self.reading, self.data),)

    def run_once(self, image: str, argv: tuple[str, ...], *, timeout: float) -> OneRun:
        """Run the command in the derived image, or say the best that it could say."""
        if self.runs:
            return self.real.run_once(image, argv, timeout=timeout)
        if argv[0] in SHELLS:  # it lists the image's variables
            variables = self.real.facts(image).environment
            return OneRun(0, "".join(f"{name}={value}\n" for name, value in variables.items()), "")
        return self.known.answer(argv, lambda: self.real.run_once(self.good, argv, timeout=timeout))


@dataclass
class Known:
    """What commands said in the good image."""

    runs: dict[tuple[str, ...], OneRun] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def answer(self, argv: tuple[str, ...], run: Callable[[], OneRun]) -> OneRun:
        """Return what a command said, running it when it was not run before."""
        with self.lock:
            if argv not in self.runs:
                self.runs[argv] = run()
            return self.runs[argv]


@contextlib.contextmanager
def cheap_reading() -> Iterator[None]:
    """Let inspect read laid over file systems for the time of the block."""
    with (
        mock.patch.object(inspect_module, "read_rootfs", read_laid_over),
        mock.patch.object(inspect_module, "read_layers", layers_laid_over),
        mock.patch.object(called, "called_operators", _once_a_text(called.called_operators)),
    ):
        yield


def _once_a_text(
    search: Callable[[dict[str, str], str], tuple[called.Use, ...]],
) -> Callable[[dict[str, str], str], tuple[called.Use, ...]]:
    """Keep what is found in the same sources: nearly all faults leave vLLM's modules as they are."""
    found: dict[str, tuple[called.Use, ...]] = {}

    def once(sources: dict[str, str], device: str) -> tuple[called.Use, ...]:
        key = digest_of([device, sorted(sources.items())])
        if key not in found:
            found[key] = search(sources, device)
        return found[key]

    return once


def differences(left: RootFs, right: RootFs) -> list[str]:
    """Return the paths in which two readings differ; both readings of one image have to agree in all."""
    paths = sorted({*left.entries, *right.entries})
    found = [path for path in paths if left.entries.get(path) != right.entries.get(path)]
    kept = sorted({*left.kept, *right.kept})
    return found + [f"{path} (bytes)" for path in kept if left.kept.get(path) != right.kept.get(path)]
