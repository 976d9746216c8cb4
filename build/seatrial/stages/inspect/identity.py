"""What the image says that it is, in all the places where it says it, and what its parts were made from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from seatrial.model.expectation import recorded_digest
from seatrial.model.labels import BASE_COMMIT_LABEL, BASE_VERSION_LABEL, OCI
from seatrial.stages.inspect.subject import Found, Image, want

_RELEASE = re.compile(r"(?<![\w.])v?(\d+\.\d+\.\d+(?:rc\d+|\.post\d+)?)(?![\d.]*\d)")
"""A vLLM release inside a tag: `v0.15.1`, `0.28.0-cpu`."""

_VERSION_VARIABLES = ("VLLM_VERSION", "VLLM_IMAGE_TAG")
_COMMIT_VARIABLES = ("VLLM_COMMIT", "VLLM_BUILD_COMMIT")


def check_version(image: Image) -> Found:
    """Check that metadata, the module's own version and its commit name the base that was asked for."""
    expected, vllm = want(image), image.python.vllm
    if vllm is None:
        return Found(("no distribution in the image brings vllm/",))
    problems: list[str] = []
    if (vllm.name, vllm.version) != ("vllm", expected.vllm_version):
        problems.append(f"the image holds {vllm.name} {vllm.version}, not vllm {expected.vllm_version}")
    module, commit = _module_says(image)
    if module is None:
        problems.append("vllm/_version.py does not say a version")
    elif release(module) != expected.base:
        problems.append(f"vllm/_version.py says {module}, the base is {expected.base}")
    if commit is not None and not expected.commit.startswith(commit.removeprefix("g")):
        problems.append(f"vllm/_version.py says commit {commit}, the base is {expected.commit[:12]}")
    return Found(tuple(problems), {"metadata": vllm.version, "module": module, "commit": commit})


def check_one_version(image: Image) -> Found:
    """Check that tag, labels, variables, metadata and module agree on one version and one commit."""
    vllm = image.python.vllm
    if vllm is None:
        return Found(("no distribution in the image brings vllm/",))
    excused = image.excused("one-version")
    module, commit = _module_says(image)
    versions = {"its metadata": release(vllm.version), **dict(_said_versions(image))}
    if module is not None:
        versions["vllm/_version.py"] = release(module)
    commits = dict(_said_commits(image))
    if commit is not None:
        commits["vllm/_version.py"] = commit.removeprefix("g")
    problems = []
    if "dev" not in vllm.version:  # a tag of a nightly names the release before it
        problems += list(_disagreements("version", versions))
    problems += _disagreements("commit", commits)
    if vllm.name != "vllm":
        problems.append(
            f"vllm/ is brought by a distribution called {vllm.name}; vLLM asks for the version of `vllm` when it starts"
        )
    return Found(
        tuple(problem for problem in problems if not excused.allows(problem)),
        {"versions": versions, "commits": commits, **excused.measured()},
    )


def check_patched_files(image: Image) -> Found:
    """Check that what the fixes changed is what the image holds."""
    expected = want(image)
    vllm = image.python.vllm
    if vllm is None:
        return Found(("no distribution in the image brings vllm/",))
    problems: list[str] = []
    for name, digest in sorted(expected.patched.items()):
        entry = image.root.at(f"{vllm.site}/{name}")
        if entry is None:
            problems.append(f"{name} is patched in the build and missing in the image")
        elif entry.sha256 != digest:
            problems.append(f"{name} is not the patched file: sha256 {entry.sha256[:12]}, not {digest[:12]}")
    for name in expected.removed:
        if image.root.at(f"{vllm.site}/{name}") is not None:
            problems.append(f"{name} was removed by a fix and is still in the image")
    return Found(tuple(problems), {"patched": sorted(expected.patched), "removed": list(expected.removed)})


def check_locked_files(image: Image) -> Found:
    """Compare what each distribution's RECORD lists with the wheel that the lock names: same version, other bytes."""
    expected = want(image).records
    problems: list[str] = []
    for name, digest in sorted(expected.items()):
        one = next((d for d in image.python.distributions if d.name == name), None)
        if one is None or not one.has_record:
            problems.append(f"{name} has no RECORD to compare with the locked wheel")
            continue
        prefix = f"{one.site}/"
        lines = ((line.path.removeprefix(prefix), line.sha256) for line in one.record if line.path.startswith(prefix))
        if recorded_digest(lines) != digest:
            problems.append(f"{name} {one.version} is not the locked wheel: its RECORD lists other files or digests")
    if not expected:
        problems.append("the build names no wheel to compare with")
    return Found(tuple(problems), {"compared": len(expected)})


def _module_says(image: Image) -> tuple[str | None, str | None]:
    vllm = image.python.vllm
    text = (image.root.text(f"{vllm.site}/vllm/_version.py") or "") if vllm is not None else ""
    return assigned(text, "version"), assigned(text, "commit_id")


def _said_versions(image: Image) -> Iterator[tuple[str, str]]:
    labels = image.facts.labels
    if _about_vllm(labels) and (found := _RELEASE.search(labels.get(f"{OCI}version", ""))):
        yield f"label {OCI}version", found[1]
    if said := labels.get(BASE_VERSION_LABEL):
        yield f"label {BASE_VERSION_LABEL}", said
    for name in _VERSION_VARIABLES:
        if found := _RELEASE.search(image.facts.environment.get(name, "").rpartition(":")[2]):
            yield f"variable {name}", found[1]
    for tag in image.facts.names:
        repository, _, word = tag.rpartition(":")
        if "vllm" in repository.rpartition("/")[2] and (found := _RELEASE.search(word)):
            yield f"tag {tag}", found[1]


def _said_commits(image: Image) -> Iterator[tuple[str, str]]:
    labels = image.facts.labels
    if _about_vllm(labels) and labels.get(f"{OCI}revision"):
        yield f"label {OCI}revision", labels[f"{OCI}revision"]
    if said := labels.get(BASE_COMMIT_LABEL):
        yield f"label {BASE_COMMIT_LABEL}", said
    for name in _COMMIT_VARIABLES:
        if said := image.facts.environment.get(name):
            yield f"variable {name}", said


def _about_vllm(labels: Mapping[str, str]) -> bool:
    """Tell whether the standard labels speak of vLLM: an image inherits its base system's when it sets none."""
    return any("vllm" in labels.get(f"{OCI}{name}", "").lower() for name in ("title", "source", "url", "ref.name"))


def _disagreements(what: str, said: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each place that says another thing than the first, a commit's beginning being enough."""
    words = {place: word for place, word in said.items() if re.fullmatch(r"[0-9a-f]{7,40}", word) or what != "commit"}
    if not words:
        return
    home = "vllm/_version.py" if what == "commit" and "vllm/_version.py" in words else next(iter(words))
    for place, word in words.items():
        length = min(len(word), len(words[home])) if what == "commit" else None
        if word[:length] != words[home][:length]:
            yield f"{place} says {what} {word}, and {home} says {words[home]}"


def release(version: str) -> str:
    """Return a version without its local and development parts."""
    return version.partition("+")[0].partition(".dev")[0]


def assigned(text: str, name: str) -> str | None:
    """Return the text that a line of `_version.py` gives a name."""
    match = re.search(rf"(?m)^(?:__\w+__ = )?{name} = (['\"])(?P<value>.*?)\1", text)
    return match["value"] if match else None
