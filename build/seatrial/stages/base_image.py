"""The distribution's root file system that an image stands on: pulled by digest, or bootstrapped from its archive."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Literal

from seatrial.model.errors import BuildError, CommandError, FetchError, UsageError
from seatrial.model.image import BaseImage
from seatrial.model.values import digest_of
from seatrial.ports import process
from seatrial.ports.buildx import find_buildx
from seatrial.ports.console import Console
from seatrial.ports.engine_setup import APT_ENV, parse_targets
from seatrial.ports.files import scratch_beside, sha256_file, write_atomic

SUITE = "bookworm"
EPOCH = 1686355200
"""Debian 12's release day: no file of the bootstrapped system is younger."""
PACKAGES = ("ca-certificates", "libnuma1", "libstdc++6", "python3", "usr-is-merged")
"""ca-certificates: models are fetched over TLS. libnuma1, libstdc++6: vLLM's extensions link to them.

usr-is-merged: without it apt takes the converter for old systems, and 45 MB of Perl with it.
"""
DPKG_OPTIONS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "force-unsafe-io",
)
HOOK = 'rm -f "$1"/var/cache/debconf/*-old'
"""Debconf's copies of its own state before the last change; nothing reads them."""
BOOTSTRAP_SECONDS = 900.0
PULL_SECONDS = 30.0

Mode = Literal["pull", "bootstrap", "auto"]


def base_image(mode: Mode, reference: str | None, *, cache: Path, console: Console) -> BaseImage:
    """Return the base system.

    Args:
        mode: `pull` or `bootstrap` and nothing else, or `auto`: pull where a reference is known and a registry
            answers soon, else bootstrap; that is announced.
        reference: NAME@sha256:DIGEST of an image with Python 3.11 as /usr/bin/python3, libnuma and libstdc++.
        cache: seatrial's cache folder; a bootstrapped system is kept there by its recipe's digest.

    Raises:
        UsageError: `pull` without a reference.
        FetchError: the reference cannot be pulled, or the archive cannot be reached.
        BuildError: the bootstrap failed.
    """
    if mode != "bootstrap" and reference is not None:
        try:
            return _pulled(reference)
        except FetchError as error:
            if mode == "pull":
                raise
            console.fallback(f"the base system is bootstrapped, not pulled: {error.what} ({error.why})")
    elif mode == "pull":
        raise nothing_to_pull()
    elif mode == "auto":
        console.fallback("the base system is bootstrapped from the distribution's archive: no base image is named")
    return bootstrap(cache, console)


def nothing_to_pull() -> UsageError:
    """Return what is wrong with asking for a pull and naming nothing."""
    return UsageError(
        "--base-image pull needs to be told what to pull",
        why="no digest of a fitting base image is pinned here",
        do="add --base-image-ref NAME@sha256:DIGEST, or use --base-image bootstrap",
    )


def _pulled(reference: str) -> BaseImage:
    """Return a base that the build pulls by digest, after the registry has shown that it holds it."""
    argv = [*find_buildx(), "imagetools", "inspect", "--raw", reference]
    try:
        process.run(argv, timeout=PULL_SECONDS)
    except CommandError as error:
        reason = (error.output.splitlines() or [error.what])[-1]
        raise FetchError(
            f"{reference} cannot be pulled", why=reason, do="use --base-image bootstrap, or another registry"
        ) from None
    return BaseImage("pulled", reference, reference.rpartition("@sha256:")[2], None, reference, {})


def recipe() -> str:
    """Return the digest of everything here that decides a bootstrapped system, the archive's own state left out."""
    return digest_of({"suite": SUITE, "epoch": EPOCH, "packages": PACKAGES, "dpkg": DPKG_OPTIONS, "hook": HOOK})


def bootstrap(cache: Path, console: Console) -> BaseImage:
    """Return a bootstrapped Debian 12, made once for a recipe and then kept.

    The same archive state gives the same bytes. To take in newer packages, remove the folder that is named.

    Raises:
        BuildError: mmdebstrap failed.
        DiskError: no room.
    """
    folder = cache / "base" / recipe()[:16]
    tar, facts = folder / "base.tar", folder / "base.json"
    known = _known(tar, facts)
    if known is not None:
        console.detail(f"base system: kept, {known.name}; to renew it, remove {folder}")
        return known
    console.line(f"  bootstrapping Debian {SUITE} with {', '.join(PACKAGES)}")
    with scratch_beside(folder) as scratch:
        made = scratch / "base.tar"
        _mmdebstrap(made)
        packages = read_packages(made)
        said = {"sha256": sha256_file(made), "packages": packages}
        write_atomic(scratch / "base.json", (json.dumps(said, indent=1, sort_keys=True) + "\n").encode())
        shutil.rmtree(folder, ignore_errors=True)
        scratch.chmod(0o755)
        scratch.rename(folder)
    found = _known(tar, facts)
    if found is None:
        raise BuildError("the bootstrapped system did not stay as it was written", do="run the same again")
    console.detail(f"{found.name}, {tar.stat().st_size / 1e6:.0f} MB, sha256 {found.sha256[:12]}")
    return found


def _known(tar: Path, facts: Path) -> BaseImage | None:
    """Return the kept system when its bytes are still those that were written."""
    try:
        data = json.loads(facts.read_text(encoding="utf-8"))
        if sha256_file(tar) != data["sha256"]:
            return None
    except (OSError, ValueError, KeyError):
        return None
    packages = dict(data["packages"])
    name = f"Debian {SUITE} bootstrapped, {len(packages)} packages, python3 {packages.get('python3', '?')}"
    return BaseImage("bootstrapped", name, data["sha256"], tar, None, packages)


def _mmdebstrap(target: Path) -> None:
    options = [f"--dpkgopt={option}" for option in DPKG_OPTIONS]
    argv = ["mmdebstrap", "--quiet", "--variant=essential", f"--include={','.join(PACKAGES)}", *options]
    argv += ["--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr"]
    argv += [f"--customize-hook={HOOK}", SUITE, str(target)]
    argv[1:1] = [f"--aptopt={line}" for line in apt_options()]
    lines = archive_lines()
    if lines:
        argv.append("-")
    try:
        process.run(
            argv,
            timeout=BOOTSTRAP_SECONDS,
            env={**APT_ENV, "SOURCE_DATE_EPOCH": str(EPOCH)},
            stdin="".join(f"{line}\n" for line in lines).encode() if lines else None,
        )
    except CommandError as error:
        told = [line for line in error.output.splitlines() if line.startswith("E:")]
        reason = (told or error.output.splitlines() or [error.what])[-1]
        raise BuildError(
            "the base system could not be bootstrapped",
            why=reason,
            do="see that `apt-get update` works here, or name a base image: --base-image-ref NAME@sha256:DIGEST",
        ) from None


def archive_lines() -> list[str]:
    """Return apt lines for the suite from the machine's own sources; none where it has no such source.

    mmdebstrap then asks the archive that it knows itself.
    """
    try:
        listed = process.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(CODENAME)", "Created-By: Packages"],
            timeout=60,
            env=APT_ENV,
        )
    except CommandError:
        return []
    targets = parse_targets(listed.text)
    return [f"deb {uri} {name} main" for uri, name in targets if name == SUITE or name.startswith(f"{SUITE}-")]


def apt_options() -> list[str]:
    """Return how this machine reaches its archive (proxy, certificates, snapshots with old dates), as apt lines."""
    try:
        dumped = process.run(["apt-config", "dump", "--format", '%f "%v";%n', "Acquire"], timeout=60, env=APT_ENV)
    except CommandError:
        return []
    wanted = ("Acquire::http::", "Acquire::https::", "Acquire::Check-")
    return [line for line in dumped.text.splitlines() if line.startswith(wanted) and '""' not in line]


def read_packages(tar: Path) -> dict[str, str]:
    """Return package to version from the dpkg status inside a root file system.

    Raises:
        BuildError: there is none, so it is no Debian system.
    """
    with tarfile.open(tar) as archive:
        try:
            stream = archive.extractfile("./var/lib/dpkg/status")
        except KeyError:
            stream = None
        if stream is None:
            raise BuildError("the bootstrapped system has no dpkg status", do="run the same again")
        text = stream.read().decode()
    packages: dict[str, str] = {}
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " ")
        if "Package" in fields:
            packages[fields["Package"]] = fields.get("Version", "")
    return dict(sorted(packages.items()))
