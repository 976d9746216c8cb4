"""Every check of the table: green on a good image, and red for each fault that is seeded into it."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from seatrial.model.errors import EngineError
from seatrial.model.expectation import Allowance, Expectation
from seatrial.model.report import Case, Outcome, Report
from seatrial.ports.console import Console
from seatrial.ports.images import ImageFacts, OneRun
from seatrial.ports.layers import Hidden, LayerSummary
from seatrial.stages.inspect import CASES, CHECKS, inspect_image
from tests.imagemaker import DIGEST, SITE, SYSTEM, MemoryImages, elf_bytes, good_expectation, good_labels
from tests.inspect_faults import MORE

Seed = Callable[[MemoryImages], Any]


def inspected(images: MemoryImages, expected: Expectation | None) -> Report:
    return inspect_image("vllm:under-test", expected, images, Console(out=io.StringIO(), ci=False))


def case_of(report: Report, name: str) -> Case:
    return next(case for case in report.cases if case.name == name)


def test_a_good_image_passes_every_check() -> None:
    report = inspected(MemoryImages(), good_expectation())
    assert {case.name: case.reason for case in report.bad} == {}
    assert tuple(case.name for case in report.cases) == CASES
    assert (report.kind, report.profile, report.subject) == ("inspect", "inspect", DIGEST)
    assert (report.platform, report.base) == ("cpu", "0.28.0")


def test_without_an_expectation_what_compares_is_not_run_and_the_rest_is() -> None:
    report = inspected(MemoryImages(), None)
    for check in CHECKS:
        case = case_of(report, check.name)
        assert case.outcome is (Outcome.NOT_RUN if check.needs_expectation else Outcome.PASSED), case.reason
        assert bool(case.reason) is check.needs_expectation
    assert report.bad


def at(path: str, data: bytes | str = b"x", mode: int = 0o644) -> Seed:
    return lambda images: images.disk.add(path, data, mode)


def without(path: str) -> Seed:
    return lambda images: images.disk.files.pop(path)


def config(**values: Any) -> Seed:
    return lambda images: images.change(**values)


def variable(name: str, value: str) -> Seed:
    return lambda images: images.change(environment={**images.image.environment, name: value})


def label(name: str, value: str) -> Seed:
    return lambda images: images.change(labels={**images.image.labels, name: value})


def folder(path: str, mode: int) -> Seed:
    return lambda images: images.disk.folders.update({path: mode})


def dist(name: str, version: str, files: dict[str, bytes], *requires: str) -> Seed:
    return lambda images: images.disk.install(name, version, files, requires)


def answers(**changes: Any) -> Seed:
    return lambda images: images.answers(**changes)


def ended(status: int | None, stdout: str, stderr: str) -> Seed:
    return lambda images: setattr(images, "run", OneRun(status, stdout, stderr))


def extension(**result: Any) -> Seed:
    return answers(extensions={"vllm._C": result})


def platform(device: str, warnings: list[str], operators: list[str]) -> Seed:
    answer = {"platform": "UnspecifiedPlatform", "device_type": device, "warnings": warnings}
    return answers(platform={"answer": answer, "operators": operators})


OPS = ["_C::one", "_C::two"]
NATIVE = f"{SITE}/vllm/_C.abi3.so"
INFO = f"{SITE}/vllm-0.28.0+cpu.st1.dist-info"

FAULTS: list[tuple[str, str, Seed]] = [
    # check, words that the reason must hold, fault
    ("native-closure", f"{NATIVE} needs libnuma.so.1: no file of that name", without(f"{SYSTEM}/libnuma.so.1")),
    ("native-closure", "needs libc10.so", without(f"{SITE}/torch/lib/libc10.so")),
    (
        "native-closure",
        f"{SYSTEM}/libc.so.6 is truncated",
        at(f"{SYSTEM}/libc.so.6", elf_bytes(soname="libc.so.6")[:-9]),
    ),
    ("native-closure", "asks for the loader", without("/usr/lib64/ld-linux-x86-64.so.2")),
    ("native-closure", "LD_PRELOAD names /nowhere.so", variable("LD_PRELOAD", "/nowhere.so")),
    (
        "native-closure",
        "it lies at /opt/elsewhere/libx.so.1, where the loader does not look",
        lambda i: (
            i.disk.add("/opt/elsewhere/libx.so.1", elf_bytes(soname="libx.so.1")),
            i.disk.add("/usr/bin/tool", elf_bytes(["libx.so.1"]), 0o755),
        ),
    ),
    (
        "native-closure",
        "needs libx.so.1, loaded for /usr/bin/tool",
        lambda i: (
            i.disk.add(f"{SYSTEM}/liby.so.1", elf_bytes(["libx.so.1"], soname="liby.so.1")),
            i.disk.add("/usr/bin/tool", elf_bytes(["liby.so.1"]), 0o755),
        ),
    ),
    # a preload counts only for those that require its provider
    ("native-closure", "ext.so needs libc10.so", dist("other", "1.0", {"other/ext.so": elf_bytes(["libc10.so"])})),
    ("distributions", "extra 1.0 is installed and not in the lock", dist("extra", "1.0", {"extra.py": b""})),
    (
        "distributions",
        "filelock is 3.17.0, the lock says 3.16.1",
        lambda i: (
            [i.disk.files.pop(p) for p in list(i.disk.files) if "filelock-" in p],
            i.disk.install("filelock", "3.17.0", {"filelock/__init__.py": b""}),
        ),
    ),
    (
        "distributions",
        "filelock 3.16.1 is in the lock and not installed",
        lambda i: [i.disk.files.pop(p) for p in list(i.disk.files) if "filelock-" in p],
    ),
    ("distributions", "filelock is installed 2 times", dist("filelock", "3.17.0", {})),
    (
        "requirements",
        "requires filelock",
        lambda i: [i.disk.files.pop(p) for p in list(i.disk.files) if "filelock-" in p],
    ),
    ("requirements", "picky 1.0 requires torch==2.0: 2.13.0 is installed", dist("picky", "1.0", {}, "torch==2.0")),
    ("requirements", "asks 1.0 requires giver[more]: it is not installed", dist("asks", "1.0", {}, "giver[more]")),
    (
        "requirements",
        'giver 1.0 requires lost; extra == "more": it is not',
        lambda i: (
            i.disk.install("asks", "1.0", {}, ["giver[more]"]),
            i.disk.install("giver", "1.0", {}, ['lost; extra == "more"']),
        ),
    ),
    ("requirements", "cannot be read", dist("odd", "1.0", {}, "not a requirement!!")),
    ("module-owners", "belongs to filelock, twin", dist("twin", "1.0", {"filelock/__init__.py": b"other"})),
    ("patched-files", "vllm/model.py is not the patched file", at(f"{SITE}/vllm/model.py", b"# upstream\n")),
    ("patched-files", "vllm/model.py is patched in the build and missing", without(f"{SITE}/vllm/model.py")),
    ("patched-files", "vllm/gone.py was removed by a fix", at(f"{SITE}/vllm/gone.py")),
    ("vllm-record", "vllm/__init__.py differs from the RECORD", at(f"{SITE}/vllm/__init__.py", b"import torch \n")),
    ("vllm-record", "_C.abi3.so is in the RECORD of vllm and missing", without(NATIVE)),
    ("vllm-record", "stray.py stands among vLLM's files", at(f"{SITE}/vllm/stray.py")),
    ("vllm-record", "no distribution with a RECORD brings vllm/", without(f"{INFO}/RECORD")),
    ("records", "torch/__init__.py differs from the RECORD of torch", at(f"{SITE}/torch/__init__.py", b"changed")),
    (
        "version",
        "the image holds vllm 0.27.0, not vllm 0.28.0+cpu.st1",
        lambda i: (
            [i.disk.files.pop(p) for p in list(i.disk.files) if p.startswith(INFO)],
            i.disk.install("vllm", "0.27.0", {"vllm/__init__.py": b""}),
        ),
    ),
    ("version", "_version.py says 0.27.0", at(f"{SITE}/vllm/_version.py", "version = '0.27.0'\n")),
    (
        "version",
        "says commit gdeadbeef",
        at(f"{SITE}/vllm/_version.py", "version = '0.28.0'\ncommit_id = 'gdeadbeef'\n"),
    ),
    ("version", "does not say a version", without(f"{SITE}/vllm/_version.py")),
    ("labels", "label org.seatrial.base.version says '0.27.0'", label("org.seatrial.base.version", "0.27.0")),
    (
        "labels",
        "label org.seatrial.fixes is missing",
        lambda i: i.change(labels={k: v for k, v in good_labels().items() if k != "org.seatrial.fixes"}),
    ),
    ("labels", "org.opencontainers.image.source is missing or empty", label("org.opencontainers.image.source", "")),
    ("environment", "VLLM_ROW is '0'", variable("VLLM_ROW", "0")),
    ("environment", "VLLM_ROW is not set", lambda i: i.image.environment.pop("VLLM_ROW")),
    ("run-contract", "the image runs as root", config(user="")),
    ("run-contract", "the image runs as root", config(user="0:0")),
    ("run-contract", "does not know that name", config(user="nobody-there")),
    ("run-contract", "there is no ENTRYPOINT", config(entrypoint=())),
    ("run-contract", "ENTRYPOINT is python3 -m x", config(entrypoint=("python3", "-m", "x"))),
    ("run-contract", "ENTRYPOINT starts vllm, which the image does not hold", without("/opt/vllm/bin/vllm")),
    ("run-contract", "asks for the interpreter /gone/python", at("/opt/vllm/bin/vllm", "#!/gone/python\n", 0o755)),
    ("run-contract", "has mode 0750", folder("/opt", 0o750)),
    ("run-contract", "has mode 0700", at("/usr/bin/python3.11", elf_bytes(["libc.so.6"]), 0o700)),
    ("run-contract", "HOME is not set", lambda i: i.image.environment.pop("HOME")),
    ("run-contract", "another UID cannot write there", folder("/home/vllm", 0o755)),
    ("run-contract", "HOME is /gone", variable("HOME", "/gone")),
    ("run-contract", "there is no HEALTHCHECK", config(health=())),
    ("run-contract", "there is no HEALTHCHECK", config(health=("NONE",))),
    ("run-contract", "STOPSIGNAL is SIGKILL", config(stop_signal="SIGKILL")),
    ("world-writable", "/etc/open.conf can be written by anyone", at("/etc/open.conf", mode=0o666)),
    ("world-writable", "/opt/open can be written by anyone", folder("/opt/open", 0o777)),
    ("set-id", "/usr/local/bin/sudo runs as uid 0", at("/usr/local/bin/sudo", mode=0o4755)),
    (
        "size",
        "holds 2 MB beyond its wheels and may hold 1 MB; largest outside of them: /opt/big 2 MB",
        at("/opt/big/blob", bytes(2_000_000)),
    ),
    ("leftovers", "1 compiler file", at("/usr/bin/x86_64-linux-gnu-gcc-12")),
    ("leftovers", "compiler", at("/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus")),
    ("leftovers", "header", at("/usr/include/stdio.h")),
    ("leftovers", "pip or uv cache", at("/root/.cache/pip/http/1")),
    ("leftovers", "package list", at("/var/lib/apt/lists/some_Packages")),
    ("leftovers", "log", at("/var/log/dpkg.log")),
    ("leftovers", "wheel or source archive", at("/srv/wheels/vllm.whl")),
    ("leftovers", "temporary file", at("/tmp/left")),
    ("leftovers", "git history", at("/opt/src/.git/HEAD")),
    ("secrets", "variable HTTPS_PROXY holds the build's proxy", variable("HTTPS_PROXY", "http://proxy.test:3128")),
    ("secrets", "variable HF_TOKEN holds what its name calls a secret", variable("HF_TOKEN", "abcdefgh")),
    ("secrets", "variable PIP_INDEX_URL holds the build's package index", variable("PIP_INDEX_URL", "https://a.test")),
    ("secrets", "label note holds a password in an address", label("note", "https://me:word@host.test/")),
    ("secrets", "step 1 of the history", config(history=("RUN |1 http_proxy=http://p.test:1 /bin/sh -c x",))),
    ("secrets", "history holds a GitHub token", config(history=("RUN git clone x " + "ghp_" + "a" * 36,))),
    ("secrets", "/root/.netrc holds logins", at("/root/.netrc")),
    ("secrets", "sets the build's proxy", at("/etc/apt/apt.conf.d/99", 'Acquire::http::Proxy "http://p.test:1";\n')),
    ("secrets", "names the build's package index", at("/etc/pip.conf", "[global]\nindex-url = https://a.test\n")),
    ("secrets", "holds a private key", at("/opt/app/tls.key", "-----BEGIN " + "PRIVATE KEY-----\n")),
    ("extensions", "no vLLM extension", without(NATIVE)),
    ("extensions", "torch does not import in the image: ImportError: x", answers(torch_error="ImportError: x")),
    (
        "extensions",
        "vllm._C does not load: ImportError: undefined",
        extension(error="ImportError: undefined", operators=[]),
    ),
    ("extensions", "killed by signal 4", extension(signal=4)),
    ("extensions", "does not register 1 operators that it should: _C::two", extension(answer=None, operators=OPS[:1])),
    ("extensions", "registers 1 operators that nobody", extension(answer=None, operators=[*OPS, "_C::zoo"])),
    ("extensions", "vLLM takes itself for UnspecifiedPlatform", platform("", [], OPS)),
    ("extensions", "vLLM itself did not load vllm._C", platform("cpu", [], ["_C::one"])),
    ("extensions", "vLLM warns while it loads", platform("cpu", ["Failed to import from vllm._C: x"], OPS)),
    ("extensions", "platform could not be asked: ImportError: y", answers(platform={"error": "ImportError: y"})),
    ("extensions", "did not end within", ended(None, "", "")),
    ("extensions", "ended with status 127 in the image: no such file", ended(127, "", "no such file\n")),
    *MORE,
]


@pytest.mark.parametrize(("check", "words", "seed"), FAULTS, ids=[f"{c}-{n}" for n, (c, _, _) in enumerate(FAULTS)])
def test_a_seeded_fault_is_red_at_its_check_and_named(check: str, words: str, seed: Seed) -> None:
    images = MemoryImages()
    seed(images)
    case = case_of(inspected(images, good_expectation()), check)
    assert case.outcome is Outcome.FAILED
    assert words in case.reason or any(words in line for line in case.measured["problems"]), case.measured
    assert case.reason.endswith(next(row.advice for row in CHECKS if row.name == check))


def test_every_check_is_seen_red() -> None:
    assert {check for check, _, _ in FAULTS} == set(CASES)


def test_an_allowance_excuses_only_what_it_names_and_stands_in_the_report() -> None:
    images = MemoryImages()
    images.disk.add("/usr/bin/gcc")
    images.disk.add("/usr/bin/make")
    allowance = Allowance(check="leftovers", pattern="/usr/bin/gcc", why="compiled at run time")
    case = case_of(inspected(images, good_expectation(allowances=(allowance,))), "leftovers")
    assert case.outcome is Outcome.FAILED
    assert "make" in case.reason
    assert "gcc" not in case.reason
    assert case.measured["allowed"] == [{"pattern": "/usr/bin/gcc", "times": 1, "why": "compiled at run time"}]


def test_an_allowance_of_another_check_excuses_nothing() -> None:
    images = MemoryImages()
    images.disk.add("/usr/bin/gcc")
    allowance = Allowance(check="secrets", pattern="*", why="other")
    assert case_of(inspected(images, good_expectation(allowances=(allowance,))), "leftovers").outcome is Outcome.FAILED


def vendored(**libraries: bytes) -> Seed:
    """Install an extension whose libraries lie beside it and have no path of their own, as auditwheel leaves them."""
    files = {"cv/cv.so": elf_bytes(["libone.so"], rpath="$ORIGIN/../cv.libs")}
    return dist("cv", "1.0", files | {f"cv.libs/lib{name}.so": data for name, data in libraries.items()})


def test_vendored_libraries_are_found_by_the_path_of_the_extension_that_loads_them() -> None:
    images = MemoryImages()
    vendored(one=elf_bytes(["libtwo.so"]), two=elf_bytes(["libthree.so"]), three=elf_bytes())(images)
    case = case_of(inspected(images, good_expectation()), "native-closure")
    assert case.outcome is Outcome.PASSED, case.reason


def test_a_vendored_library_that_nothing_leads_to_is_loaded_by_itself() -> None:
    images = MemoryImages()
    vendored(one=elf_bytes(), two=elf_bytes(["libthree.so"]), three=elf_bytes())(images)
    case = case_of(inspected(images, good_expectation()), "native-closure")
    assert "cv.libs/libtwo.so needs libthree.so" in case.reason


def test_the_end_of_a_vendored_chain_that_is_gone_is_missed() -> None:
    images = MemoryImages()
    vendored(one=elf_bytes(["libtwo.so"]), two=elf_bytes(["libthree.so"]))(images)
    case = case_of(inspected(images, good_expectation()), "native-closure")
    assert "cv.libs/libtwo.so needs libthree.so, loaded for" in case.reason


def test_a_preload_is_named_with_its_reason() -> None:
    case = case_of(inspected(MemoryImages(), good_expectation()), "native-closure")
    assert case.measured["preloaded"][0]["by"] == "torch"
    assert case.measured["preloaded"][0]["names"] == ["libc10.so", "libtorch.so"]


def test_variants_that_this_processor_cannot_run_are_reported_as_not_run() -> None:
    images = MemoryImages()
    images.disk.files.pop(f"{INFO}/RECORD")
    images.disk.install(
        "vllm", "0.28.0+cpu.st1", {"vllm/__init__.py": b"", "vllm/_C.abi3.so": b"", "vllm/_C_AVX2.abi3.so": b""}
    )
    no_init = "ImportError: dynamic module does not define module export function (PyInit__C_AVX2)"
    images.answers(
        flags=["avx2"],
        extensions={"vllm._C": {"signal": 4}, "vllm._C_AVX2": {"error": no_init, "operators": OPS}},
    )
    case = case_of(inspected(images, good_expectation()), "extensions")
    assert case.outcome is Outcome.PASSED, case.reason
    assert case.measured["not_run_on_this_host"] == {"vllm._C": "this host's processor lacks avx512_bf16, avx512f"}
    assert list(case.measured["operators"]) == ["vllm._C_AVX2"]


def test_a_variant_without_init_function_must_register_something() -> None:
    images = MemoryImages()
    images.disk.add(f"{SITE}/vllm/_C_AVX2.abi3.so", b"")
    no_init = "ImportError: dynamic module does not define module export function (PyInit__C_AVX2)"
    good = {"answer": None, "operators": OPS}
    images.answers(extensions={"vllm._C": good, "vllm._C_AVX2": {"error": no_init, "operators": []}})
    case = case_of(inspected(images, good_expectation()), "extensions")
    assert "registers no operator" in case.reason


def test_an_extension_of_the_base_that_is_not_there_is_missed() -> None:
    operators = {"vllm._C": tuple(OPS), "vllm._C_AVX2": tuple(OPS)}
    case = case_of(inspected(MemoryImages(), good_expectation(operators=operators)), "extensions")
    assert "vllm._C_AVX2 is one of the base's extensions and is not in the image" in case.reason


def test_without_a_list_the_operators_are_not_taken_for_right() -> None:
    case = case_of(inspected(MemoryImages(), good_expectation(operators={})), "extensions")
    assert "there is no list of operators to compare with" in case.reason


def test_without_records_no_wheel_is_taken_for_the_locked_one() -> None:
    case = case_of(inspected(MemoryImages(), good_expectation(records={})), "locked-files")
    assert "the build names no wheel to compare with" in case.reason


def test_a_container_that_cannot_be_started_is_a_fault_of_the_image() -> None:
    class Refusing(MemoryImages):
        def run_once(self, image: str, argv: tuple[str, ...], *, timeout: float) -> OneRun:
            raise EngineError("the engine did not", why="unable to find user server")

    report = inspected(Refusing(), good_expectation())
    assert "the container cannot be started: unable to find user server" in case_of(report, "extensions").reason
    assert "ends with status 125" in case_of(report, "shell").reason


def test_an_engine_that_went_away_is_no_fault_of_the_image() -> None:
    class Gone(MemoryImages):
        asked = 0

        def facts(self, image: str) -> ImageFacts:
            self.asked += 1
            if self.asked > 1:
                raise EngineError("the engine is gone")
            return self.image

        def run_once(self, image: str, argv: tuple[str, ...], *, timeout: float) -> OneRun:
            raise EngineError("the engine did not")

    with pytest.raises(EngineError, match="gone"):
        inspected(Gone(), good_expectation())


def test_layers_that_were_read_where_they_were_built_are_not_asked_for_again() -> None:
    class NoArchive(MemoryImages):
        def archive(self, image: str) -> AbstractContextManager[Iterable[bytes]]:
            raise AssertionError("asked again")

    hidden = (Hidden("/root/.netrc", 1, 9, None),)
    console = Console(out=io.StringIO(), ci=False)
    report = inspect_image("x", good_expectation(), NoArchive(), console, LayerSummary((9, 1), hidden))
    assert "layer 1 of 2 still has what a later one hides: /root/.netrc" in case_of(report, "layers").reason


def test_layers_that_cannot_be_read_end_the_inspection() -> None:
    class Cut(MemoryImages):
        @contextlib.contextmanager
        def archive(self, image: str) -> Iterator[Iterable[bytes]]:
            yield [b"x" * 2000]

    with pytest.raises(EngineError, match="layers could not be read"):
        inspected(Cut(), good_expectation())


@pytest.mark.parametrize("cut", [0, 512, 1536, 5000])
def test_a_stream_that_stops_early_is_an_engine_error(cut: int) -> None:
    images = MemoryImages(cut=cut)
    with pytest.raises(EngineError, match="could not be read to its end"):
        inspected(images, good_expectation())


def test_bytecode_of_a_wheel_is_the_wheels_and_other_bytecode_is_not() -> None:
    images = MemoryImages()
    images.disk.add(f"{SITE}/torch/__pycache__/__init__.cpython-311.pyc", bytes(5_000_000))
    case = case_of(inspected(images, good_expectation()), "size")
    assert case.outcome is Outcome.PASSED
    assert case.measured["bytecode_mb"] == 5.0
    images.disk.add(f"{SITE}/torch/__pycache__/gone.cpython-311.pyc", bytes(2_000_000))
    assert case_of(inspected(images, good_expectation()), "size").outcome is Outcome.FAILED


def test_a_secret_itself_is_never_repeated() -> None:
    images = MemoryImages()
    images.change(environment={**images.image.environment, "HF_TOKEN": "very-secret-word"})
    images.change(history=("RUN curl https://me:very-secret-word@host.test/x",))
    report = inspected(images, good_expectation())
    assert "very-secret-word" not in json.dumps(report.model_dump(mode="json"))
