from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import cast

import pytest

from seatrial.model.errors import BuildError, FetchError, LockError, UsageError
from seatrial.model.image import BaseImage
from seatrial.model.platforms import PlatformTable, Setting
from seatrial.model.requirements import LockedWheel, LockRules, lock_text
from seatrial.model.values import parse_toml
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Index
from seatrial.ports.pip_config import PipConfig
from seatrial.ports.uv import Resolved
from seatrial.stages import base_image as base_stage
from seatrial.stages import image as image_stage
from seatrial.stages import wheelhouse
from seatrial.stages.base_image import base_image, read_packages
from seatrial.stages.image import ImageRequest, dockerfile_text, epoch_of, lay_build
from seatrial.stages.wheelhouse import Requirements, Sources, choose_requirements, lay_wheelhouse

IMAGES = Path(__file__).parents[2] / "images"
RULES = 'python = "3.11"\nresolver_platform = "p"\n[until]\n"1.0.0" = "2026-01-01T00:00:00Z"\n'
REST = LockedWheel("numpy", "2.0", "numpy-2.0-py3-none-any.whl", 5, "1" * 64)
CPU = LockedWheel("torch", "2.10.0+cpu", "torch-2.10.0+cpu-py3-none-any.whl", 5, "2" * 64)
CUDA = LockedWheel("torch", "2.10.0", "torch-2.10.0-py3-none-any.whl", 5, "3" * 64)


class Shelf:
    """An index that offers certain digests."""

    def __init__(self, *digests: str) -> None:
        self.digests = set(digests)

    def find_by_hashes(self, name: str, version: str, hashes: set[str]) -> None:
        if not hashes & self.digests:
            raise FetchError(f"{name} {version} is not offered")


def sources(tmp_path: Path, *digests: str, **locks: LockedWheel) -> Sources:
    (tmp_path / "cpu.toml").write_text(RULES)
    (tmp_path / "1.0.0-cpu.txt").write_text(lock_text((REST,), ()))
    for name, wheel in locks.items():
        (tmp_path / f"1.0.0-cpu.torch-{name}.txt").write_text(lock_text((wheel,), ()))
    index = cast(Index, Shelf(*digests))
    return Sources(tmp_path, index, PipConfig(index_urls=()), Cache(tmp_path / "cache"))


def choose(where: Sources, console: Console) -> Requirements:
    return choose_requirements("1.0.0", "cpu", "2.10.0", sources=where, console=console)


def test_the_cpu_build_is_taken_where_a_source_has_its_locked_bytes(tmp_path: Path) -> None:
    console = Console()
    chosen = choose(sources(tmp_path, CPU.sha256, cpu=CPU, index=CUDA), console)
    assert chosen.torch == (CPU,)
    assert chosen.versions == {"torch": "2.10.0+cpu", "numpy": "2.0"}
    assert console.fallbacks == []


def test_the_index_s_build_is_a_second_choice_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheelhouse, "find_cpu_torch", lambda *_: None)
    console = Console()
    chosen = choose(sources(tmp_path, cpu=CPU, index=CUDA), console)
    assert chosen.torch == (CUDA,)
    assert len(console.fallbacks) == 1
    assert "configured index" in console.fallbacks[0]


def test_a_hash_that_no_lock_has_is_learned_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = (Resolved(CPU, "https://pytorch.invalid/torch.whl"), "PyTorch's CPU index")
    monkeypatch.setattr(wheelhouse, "find_cpu_torch", lambda *_: seen)
    console = Console()
    chosen = choose(sources(tmp_path, index=CUDA), console)
    assert chosen.torch == (CPU,)
    assert chosen.found[0].url == "https://pytorch.invalid/torch.whl"
    assert "was learned" in console.fallbacks[0]


def test_other_bytes_than_the_locked_ones_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = LockedWheel(CPU.name, CPU.version, CPU.file, CPU.size, "9" * 64)
    monkeypatch.setattr(wheelhouse, "find_cpu_torch", lambda *_: (Resolved(other, "https://x.invalid/t.whl"), "there"))
    console = Console()
    assert choose(sources(tmp_path, cpu=CPU, index=CUDA), console).torch == (CUDA,)
    assert "other bytes" in console.fallbacks[0]


def test_a_lock_with_another_torch_than_the_base_s_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheelhouse, "find_cpu_torch", lambda *_: None)
    wrong = LockedWheel("torch", "2.13.0", "torch-2.13.0-py3-none-any.whl", 5, "3" * 64)
    with pytest.raises(LockError, match=r"pins torch 2\.13\.0"):
        choose(sources(tmp_path, index=wrong), Console())


def test_a_wheelhouse_is_links_and_its_locks(tmp_path: Path) -> None:
    files = []
    for wheel in (CPU, REST):
        path = tmp_path / wheel.file
        path.write_bytes(b"12345")
        files.append(path)
    folder = tmp_path / "house"
    lay_wheelhouse(Requirements((CPU,), (REST,), "x"), files, folder)
    assert (folder / "torch" / CPU.file).samefile(files[0])
    assert (folder / "rest" / REST.file).samefile(files[1])
    assert "numpy==2.0" in (folder / "rest/requirements.txt").read_text()


def test_the_row_s_variables_end_the_dockerfile(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text('FROM scratch\nENTRYPOINT ["vllm", "serve"]\n')
    text = dockerfile_text(path, (Setting(name="A", value="1 2", why="w"),))
    assert text.endswith('ENTRYPOINT ["vllm", "serve"]\nENV A="1 2"\n')
    with pytest.raises(BuildError, match="would not keep"):
        dockerfile_text(path, (Setting(name="A", value="$HOME", why="w"),))
    with pytest.raises(BuildError, match="does not exist"):
        dockerfile_text(tmp_path / "none", ())


def test_the_epoch_is_the_locks_moment() -> None:
    rules = LockRules(python="3.11", resolver_platform="p", until={"1.0.0": "2026-01-01T00:00:00Z"})
    assert epoch_of(rules, "1.0.0") == 1767225600


def request_for(tmp_path: Path, base: BaseImage) -> ImageRequest:
    for name in ("up.whl", "new.whl"):
        (tmp_path / name).write_bytes(b"w")
    (tmp_path / "wheels").mkdir()
    return ImageRequest(
        folder=IMAGES / "cpu",
        base=base,
        wheels=tmp_path / "wheels",
        upstream=tmp_path / "up.whl",
        patched=tmp_path / "new.whl",
        labels={},
        environment=(),
        epoch=1,
    )


def test_contexts_hold_each_piece_under_its_full_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv").write_bytes(b"uv")
    monkeypatch.setattr(image_stage, "uv_program", lambda: tmp_path / "uv")
    tar = tmp_path / "base.tar"
    tar.write_bytes(b"tar")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    build = lay_build(request_for(tmp_path, BaseImage("bootstrapped", "n", "0" * 64, tar, None, {})), scratch)
    assert (build.context / "base.tar").samefile(tar)
    assert (Path(build.contexts["patched"]) / "new.whl").samefile(tmp_path / "new.whl")
    assert "base" not in build.contexts
    assert not (build.context / "Dockerfile").exists()


def test_a_pulled_base_takes_the_place_of_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv").write_bytes(b"uv")
    monkeypatch.setattr(image_stage, "uv_program", lambda: tmp_path / "uv")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    reference = "registry.invalid/base@sha256:" + "0" * 64
    build = lay_build(request_for(tmp_path, BaseImage("pulled", "n", "0" * 64, None, reference, {})), scratch)
    assert build.contexts["base"] == f"docker-image://{reference}"
    assert "FROM scratch AS base" in build.dockerfile.read_text()


def test_pull_without_a_reference_says_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--base-image-ref NAME@sha256:DIGEST"):
        base_image("pull", None, cache=tmp_path, console=Console())


def test_auto_falls_back_to_the_bootstrap_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = BaseImage("bootstrapped", "n", "0" * 64, None, None, {})

    def no_pull(reference: str) -> BaseImage:
        raise FetchError(f"{reference} cannot be pulled", why="no route")

    monkeypatch.setattr(base_stage, "_pulled", no_pull)
    monkeypatch.setattr(base_stage, "bootstrap", lambda *_: made)
    console = Console()
    assert base_image("auto", "x@sha256:0", cache=tmp_path, console=console) is made
    assert "no route" in console.fallbacks[0]
    with pytest.raises(FetchError):
        base_image("pull", "x@sha256:0", cache=tmp_path, console=Console())
    base_image("bootstrap", None, cache=tmp_path, console=console)
    assert len(console.fallbacks) == 1


def test_a_kept_base_is_used_only_while_its_bytes_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def bootstrap(target: Path) -> None:
        made.append(target)
        with tarfile.open(target, "w") as archive:
            status = b"Package: python3\nVersion: 3.11\n\nPackage: libc6\nVersion: 2.36\n Depends: x\n"
            info = tarfile.TarInfo("./var/lib/dpkg/status")
            info.size = len(status)
            archive.addfile(info, io.BytesIO(status))

    monkeypatch.setattr(base_stage, "_mmdebstrap", bootstrap)
    first = base_stage.bootstrap(tmp_path, Console())
    assert first.packages == {"libc6": "2.36", "python3": "3.11"}
    assert base_stage.bootstrap(tmp_path, Console()) == first
    assert len(made) == 1
    assert first.tar is not None
    with first.tar.open("ab") as stream:
        stream.write(b"x")
    assert base_stage.bootstrap(tmp_path, Console()) == first
    assert len(made) == 2
    assert [path.name for path in (tmp_path / "base").iterdir()] == [first.tar.parent.name]


def test_a_system_without_a_package_list_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w"):
        pass
    with pytest.raises(BuildError, match="no dpkg status"):
        read_packages(tmp_path / "x.tar")


def test_the_platform_table_says_what_every_unbuilt_row_lacks() -> None:
    table = parse_toml(PlatformTable, (IMAGES / "platforms.toml").read_text(encoding="utf-8"), "images/platforms.toml")
    assert [row.name for row in table.platforms] == [
        "cpu",
        "cuda-sm80",
        "cuda-sm90",
        "rocm-gfx942",
        "rocm-gfx950",
        "xpu",
    ]
    for row in table.platforms:
        built = (IMAGES / row.family / "Dockerfile").is_file()
        assert built != bool(row.missing), row.name
        assert all(setting.why for setting in row.environment)
