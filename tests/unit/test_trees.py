"""Trees from folders and archives, honest and malicious."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from seatrial.model.errors import IntegrityError, UsageError
from seatrial.ports.trees import FolderTree, TarTree, ZipTree, open_tree
from tests.fixlab import PRISTINE, write_tree

EVIL = (
    "../evil.py",
    "/etc/evil.py",
    "vllm/../../evil.py",
    "vllm//evil.py",
    "vllm/.git/config",
    "a\\..\\b",
    "C:/x",
    "a\nb",
    "vllm/./evil.py",
    "vllm/.GIT/config",
)


def wheel(path: Path, files: dict[str, str], *, mode: int = 0o100644) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            info = zipfile.ZipInfo("x")
            info.filename = name
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, text)
    return path


def sdist(path: Path, files: dict[str, str], *, kind: bytes = tarfile.REGTYPE, top: str = "vllm-1.2.3/") -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as archive:
        if top:
            archive.addfile(_folder(top))
        for name, text in files.items():
            info = tarfile.TarInfo(top + name)
            info.size = len(text)
            info.mode = 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(info, io.BytesIO(text.encode()))
        if kind != tarfile.REGTYPE:
            info = tarfile.TarInfo(top + "vllm/link")
            info.type = kind
            info.linkname = "__init__.py"
            archive.addfile(info)
    return path


def _folder(top: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(top.rstrip("/"))
    info.type = tarfile.DIRTYPE
    return info


def test_all_three_give_the_same_tree(tmp_path: Path) -> None:
    metadata = {"vllm-1.2.3.dist-info/METADATA": "x", "vllm-1.2.3.data/scripts/x": "x"}
    folder = write_tree(tmp_path / "folder")
    (folder / ".git").mkdir()
    (folder / ".git/HEAD").write_text("x")
    (folder / "vllm/link.py").symlink_to("/etc/passwd")
    trees = [
        open_tree(folder),
        open_tree(wheel(tmp_path / "a.whl", PRISTINE | metadata)),
        open_tree(sdist(tmp_path / "a.tar.gz", PRISTINE)),
    ]
    plain = tmp_path / "a.tar"
    plain.write_bytes(gzip.decompress((tmp_path / "a.tar.gz").read_bytes()))
    trees.append(open_tree(plain))
    assert [type(tree) for tree in trees] == [FolderTree, ZipTree, TarTree, TarTree]
    for tree in trees:
        assert list(tree.paths()) == sorted(PRISTINE)
        assert {path: tree.read(path).decode() for path in tree.paths()} == PRISTINE
        assert tree.has("vllm/kernel.py")
        assert not tree.has("vllm")
        assert not tree.has("../folder/README.md")
        with pytest.raises(KeyError):
            tree.read("nowhere.py")


def test_x_bits_are_kept(tmp_path: Path) -> None:
    files = PRISTINE | {"run.sh": "x"}
    folder = write_tree(tmp_path / "folder", files)
    (folder / "run.sh").chmod(0o755)
    for tree in (open_tree(folder), open_tree(sdist(tmp_path / "a.tar.gz", files))):
        assert tree.executable("run.sh")
        assert not tree.executable("README.md")
    assert open_tree(wheel(tmp_path / "a.whl", files, mode=0o100755)).executable("run.sh")


def test_a_folders_digest_sees_bytes_paths_and_x_bits(tmp_path: Path) -> None:
    folder = write_tree(tmp_path)
    digests = [FolderTree(folder).digest(), FolderTree(folder).digest()]
    (folder / "README.md").chmod(0o755)
    digests.append(FolderTree(folder).digest())
    (folder / "README.md").write_text("other")
    digests.append(FolderTree(folder).digest())
    (folder / "README.md").rename(folder / "READ")
    digests.append(FolderTree(folder).digest())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


@pytest.mark.parametrize("name", EVIL)
def test_members_that_would_leave_the_tree_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(IntegrityError, match="not to be trusted"):
        open_tree(wheel(tmp_path / "a.whl", PRISTINE | {name: "x"}))
    with pytest.raises(IntegrityError, match="not to be trusted"):
        open_tree(sdist(tmp_path / "a.tar.gz", PRISTINE | {name: "x"}, top="" if name[0] == "/" else "vllm-1.2.3/"))


def test_an_archive_with_two_top_folders_is_refused(tmp_path: Path) -> None:
    files = {f"vllm-1.2.3/{key}": text for key, text in PRISTINE.items()}
    open_tree(sdist(tmp_path / "good.tar.gz", files, top=""))
    for name in ("other/vllm/x.py", "loose"):
        with pytest.raises(IntegrityError, match="not to be trusted"):
            open_tree(sdist(tmp_path / "bad.tar.gz", files | {name: "x"}, top=""))


def test_names_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="not to be trusted"):
        open_tree(sdist(tmp_path / "a.tar.gz", PRISTINE | {"vllm/\udce9.py": "x"}))


def test_a_broken_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    path = sdist(tmp_path / "a.tar.gz", PRISTINE | {"vllm/xxx.py": "x", "vllm/zzz.py": "z"})
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"xxx.py", b"yxx.py")))
    with pytest.raises(IntegrityError, match="is damaged"):
        open_tree(path)


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
        with pytest.raises(IntegrityError, match="not to be trusted") as caught:
            open_tree(sdist(tmp_path / "a.tar.gz", PRISTINE, kind=kind))
        assert "vllm/link" in caught.value.why
        assert ("link' is a link" in caught.value.why) == (kind != tarfile.FIFOTYPE)
    with pytest.raises(IntegrityError, match="not to be trusted"):
        open_tree(wheel(tmp_path / "a.whl", PRISTINE, mode=0o120777))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", PRISTINE)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("vllm/kernel.py", "other")
    with pytest.raises(IntegrityError) as caught:
        open_tree(path)
    assert "twice" in caught.value.why
    packed = sdist(tmp_path / "a.tar.gz", PRISTINE)
    data = gzip.decompress(packed.read_bytes())
    end = data.rstrip(b"\0")
    body = data[: -(-len(end) // 512) * 512]
    packed.write_bytes(gzip.compress(body + data[512:]))
    with pytest.raises(IntegrityError) as caught:
        open_tree(packed)
    assert "twice" in caught.value.why


def test_truncated_archives_are_refused(tmp_path: Path) -> None:
    files = PRISTINE | {"big": "".join(str(number * 7919) for number in range(9000))}
    for path in (wheel(tmp_path / "a.whl", files), sdist(tmp_path / "a.tar.gz", files)):
        whole = path.read_bytes()
        for keep in (len(whole) - 1, len(whole) // 2, 300):
            path.write_bytes(whole[:keep])
            with pytest.raises(IntegrityError, match="is damaged"):
                open_tree(path)
    plain = tmp_path / "a.tar"
    whole = gzip.decompress(sdist(tmp_path / "b.tar.gz", files).read_bytes())
    body = len(whole.rstrip(b"\0"))
    for keep in (body - 3000, -(-body // 512) * 512):
        plain.write_bytes(whole[:keep])
        with pytest.raises(IntegrityError, match="is damaged"):
            open_tree(plain)


def test_a_member_with_wrong_bytes_is_refused_when_read(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, text in PRISTINE.items():
            archive.writestr(name, text)
    path.write_bytes(path.read_bytes().replace(b"BUG one", b"bug one"))
    tree = open_tree(path)
    with pytest.raises(IntegrityError, match="is damaged"):
        tree.read("vllm/kernel.py")


def test_what_is_no_vllm_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        open_tree(tmp_path / "nowhere")
    (tmp_path / "text").write_text("x" * 600)
    with pytest.raises(UsageError, match="is no folder, wheel or source archive"):
        open_tree(tmp_path / "text")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(UsageError, match="is no folder, wheel or source archive"):
        open_tree(tmp_path / "empty")
    with pytest.raises(UsageError, match="holds no vLLM"):
        open_tree(tmp_path)
    with pytest.raises(UsageError, match="holds no vLLM"):
        open_tree(wheel(tmp_path / "a.whl", {"other/__init__.py": ""}))
