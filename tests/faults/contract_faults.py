"""The run contract, what a compile at run time needs, what was left behind, secrets."""

from __future__ import annotations

from tests.faults.derive import Layer
from tests.faults.model import COLUMN, Fault
from tests.faults.seeds import SITE, both, env, gone, label, mode, setting, step, written

CONTRACT = "run contract"
CHECK = "run-contract"


def root_python(layer: Layer) -> None:
    """Put the interpreter below root's own folder, as a build that ran as root does."""
    layer.folder("/root", mode=0o700)
    layer.link("/opt/vllm/bin/python", "/root/.local/python3.11")
    layer.put("/root/.local/python3.11", layer.read("/usr/bin/python3.11"), mode=0o755)


def entrypoint_script(layer: Layer) -> None:
    """Start the server through a script that sets a path up for login shells alone."""
    layer.put("/usr/local/bin/start", '#!/bin/bash -l\nexec vllm serve "$@"\n', mode=0o755)
    layer.settings["Entrypoint"] = ["/usr/local/bin/start"]


CONTRACTS: tuple[Fault, ...] = (
    Fault(
        "entrypoint-shell",
        3,
        CONTRACT,
        CHECK,
        ("ENTRYPOINT is /bin/bash", "vllm serve"),
        "the default entrypoint is a shell, so that `vllm serve` needs an override",
        setting("Entrypoint", ["/bin/bash"]),
    ),
    Fault(
        "entrypoint-script",
        3,
        CONTRACT,
        CHECK,
        ("ENTRYPOINT is /usr/local/bin/start",),
        "the entrypoint is a script that loads its environment in login shells",
        entrypoint_script,
    ),
    Fault(
        "entrypoint-path",
        3,
        CONTRACT,
        CHECK,
        ("ENTRYPOINT starts vllm", "does not hold"),
        "PATH lacks the folder of the programs",
        env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ),
    Fault(
        "entrypoint-none",
        3,
        CONTRACT,
        CHECK,
        ("there is no ENTRYPOINT",),
        "the entrypoint was lost",
        setting("Entrypoint", []),
    ),
    Fault(
        "command-repeats",
        33,
        CONTRACT,
        CHECK,
        ("CMD", "vllm serve"),
        "the command repeats the entrypoint",
        setting("Cmd", ["vllm", "serve"]),
    ),
    Fault(
        "root-interpreter",
        31,
        CONTRACT,
        CHECK,
        ("other than its owner cannot", "/root"),
        "Python lies under /root",
        root_python,
    ),
    Fault(
        "root-prefix",
        31,
        CONTRACT,
        CHECK,
        ("/opt/vllm", "0700"),
        "the environment's folder is open to root alone",
        mode("/opt/vllm", 0o700),
    ),
    Fault(
        "root-program",
        31,
        CONTRACT,
        CHECK,
        ("/opt/vllm/bin/vllm", "0744"),
        "the entrypoint's program may be run by root alone",
        mode("/opt/vllm/bin/vllm", 0o744),
    ),
    Fault(
        "root-module",
        31,
        CONTRACT,
        "readable",
        ("fastapi/applications.py",),
        "a module can be read by root alone",
        mode(f"{SITE}/fastapi/applications.py", 0o600),
    ),
    Fault(
        "root-module-folder",
        31,
        CONTRACT,
        "readable",
        ("uvicorn",),
        "a package's folder is open to root alone",
        mode(f"{SITE}/uvicorn", 0o700),
    ),
    Fault("root-user", 31, CONTRACT, CHECK, ("runs as root",), "the image runs as root", setting("User", "")),
    Fault(
        "root-user-number",
        31,
        CONTRACT,
        CHECK,
        ("runs as root",),
        "the image runs as user 0",
        setting("User", "0:0"),
    ),
    Fault(
        "unknown-user",
        31,
        CONTRACT,
        CHECK,
        ("USER is server", "/etc/passwd"),
        "the user's name is not in the image",
        setting("User", "server"),
    ),
    Fault(
        "home-of-root",
        31,
        CONTRACT,
        CHECK,
        ("HOME /root", "cannot write"),
        "HOME is root's own",
        env("HOME", "/root"),
    ),
    Fault("home-unset", 31, CONTRACT, CHECK, ("HOME is not set",), "HOME was lost", env("HOME", None)),
    Fault(
        "home-closed",
        31,
        CONTRACT,
        CHECK,
        ("HOME /home/vllm has mode 0755",),
        "another user cannot write to HOME",
        mode("/home/vllm", 0o755),
    ),
    Fault(
        "home-cache-of-root",
        31,
        CONTRACT,
        CHECK,
        ("/home/vllm/.cache",),
        "a build step as root left a cache folder in HOME that users cannot write",
        lambda layer: layer.folder("/home/vllm/.cache", mode=0o755),
    ),
    Fault(
        "no-health",
        36,
        CONTRACT,
        CHECK,
        ("no HEALTHCHECK",),
        "nobody can tell from outside that the server died",
        setting("Healthcheck", {"Test": ["NONE"]}),
    ),
    Fault(
        "health-program",
        36,
        CONTRACT,
        CHECK,
        ("HEALTHCHECK", "curl"),
        "the health check starts a program that the image does not hold",
        setting("Healthcheck", {"Test": ["CMD", "curl", "-f", "http://127.0.0.1:8000/health"]}),
    ),
    Fault(
        "stop-signal",
        36,
        CONTRACT,
        CHECK,
        ("STOPSIGNAL is SIGKILL",),
        "the server is killed instead of ended",
        setting("StopSignal", "SIGKILL"),
    ),
    Fault(
        "preload-missing",
        44,
        CONTRACT,
        "native-closure",
        ("LD_PRELOAD", "libsetvars.so"),
        "a library that is not there is preloaded into every command",
        env("LD_PRELOAD", "/opt/runtime/libsetvars.so"),
    ),
    Fault(
        "preload-tcmalloc",
        44,
        CONTRACT,
        "native-closure",
        ("LD_PRELOAD", "libtcmalloc_minimal.so.4"),
        "an allocator that was not installed is preloaded",
        env("LD_PRELOAD", "libtcmalloc_minimal.so.4"),
    ),
    Fault(
        "preload-file",
        44,
        CONTRACT,
        "shell",
        ("ld.so.preload", "libsetvars.so"),
        "the loader's own list preloads a library that is not there",
        written("/etc/ld.so.preload", "/opt/runtime/libsetvars.so\n"),
    ),
    Fault(
        "shell-gone",
        44,
        CONTRACT,
        "shell",
        ("/bin/bash",),
        "nobody can look into the image with --entrypoint /bin/bash",
        gone("/bin/bash"),
    ),
    Fault(
        "shell-start",
        44,
        CONTRACT,
        "shell",
        ("BASH_ENV",),
        "every shell sources a file that is not there",
        both(env("BASH_ENV", "/opt/runtime/setvars.sh"), env("ENV", "/opt/runtime/setvars.sh")),
    ),
    Fault(
        "entrypoint-shebang",
        23,
        CONTRACT,
        "vllm-record",
        ("bin/vllm",),
        "the program's first line names an interpreter of the build machine",
        lambda layer: layer.put("/opt/vllm/bin/vllm", "#!/build/venv/bin/python\nimport vllm\n", mode=0o755),
    ),
)

JIT: tuple[Fault, ...] = (
    Fault(
        "compile-switched-on",
        24,
        "JIT",
        "environment",
        ("TORCHDYNAMO_DISABLE", "not set"),
        "a helper compiles at the first request, and the image has no compiler",
        env("TORCHDYNAMO_DISABLE", None),
    ),
    Fault(
        "compile-ahead",
        24,
        "JIT",
        "environment",
        ("VLLM_USE_AOT_COMPILE", "'1'"),
        "vLLM compiles ahead at start, which fails where compiling is switched off",
        env("VLLM_USE_AOT_COMPILE", "1"),
    ),
    Fault(
        "compile-cache",
        22,
        "JIT",
        "leftovers",
        ("torch_compile_cache",),
        "a cache of compiled code, with its lock, was left in HOME",
        written("/home/vllm/.cache/vllm/torch_compile_cache/abc/.lock", "1\n"),
    ),
)


def left(name: str, path: str, words: str, what: str, data: bytes | str = "x" * 64) -> Fault:
    """Leave a file of the build behind."""
    return Fault(f"left-{name}", 35, "size", "leftovers", (words, path), what, written(path, data))


SIZE: tuple[Fault, ...] = (
    left("gcc", "/usr/bin/x86_64-linux-gnu-gcc-12", "compiler", "the image holds the compiler"),
    left("cc1plus", "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus", "compiler", "the compiler's inner program is left"),
    left("nvcc", "/usr/local/cuda/bin/nvcc", "compiler", "the CUDA compiler is left"),
    left("linker", "/usr/bin/ld.gold", "linker", "the linker is left"),
    left("cmake", "/usr/local/bin/cmake", "build tool", "the build's own tool is left"),
    left("headers", "/usr/include/c++/12/vector.h", "header", "a compiler's headers are left"),
    left("python-headers", "/usr/include/python3.11/Python.h", "header", "Python's headers are left"),
    left("static", "/usr/lib/x86_64-linux-gnu/libc.a", "static library", "static libraries are left"),
    left("apt-lists", "/var/lib/apt/lists/main_binary_Packages", "package list", "the lists of packages are left"),
    left("apt-cache", "/var/cache/apt/archives/gcc-12_12.2.0_amd64.deb", "package cache", "fetched packages are left"),
    left("pip-cache", "/root/.cache/pip/http/a/b", "pip or uv cache", "the installer's cache is left"),
    left("wheel", "/opt/build/vllm-0.28.0-cp38-abi3-linux_x86_64.whl", "wheel or source archive", "a wheel is left"),
    left("log", "/var/log/dpkg.log", "log", "the log of the build is left"),
    left("build-tree", "/opt/build/CMakeCache.txt", "build tree", "the build's own tree is left"),
    left("git", "/opt/build/vllm/.git/HEAD", "git history", "the source's history is left", "ref: refs/heads/main\n"),
    left("temporary", "/tmp/pip-unpack/vllm.py", "temporary file", "an unpacked wheel is left"),
    Fault(
        "too-large",
        35,
        "size",
        "size",
        ("MB beyond its wheels", "/opt/build"),
        "the image holds hundreds of megabytes that nothing needs",
        written("/opt/build/toolkit.bin", bytes(300_000_000)),
    ),
)

TOKEN = "ghp_" + "a1B2" * 9
SECRETS: tuple[Fault, ...] = (
    Fault(
        "secret-proxy",
        COLUMN,
        "secret",
        "secrets",
        ("HTTPS_PROXY", "proxy"),
        "the build's proxy is left in a variable",
        env("HTTPS_PROXY", "http://proxy.internal.example:3128"),
    ),
    Fault(
        "secret-variable",
        COLUMN,
        "secret",
        "secrets",
        ("HF_TOKEN", "secret"),
        "a token is left in a variable",
        env("HF_TOKEN", "hf_" + "x" * 34),
    ),
    Fault(
        "secret-history",
        COLUMN,
        "secret",
        "secrets",
        ("history", "GIT_TOKEN"),
        "a build argument's token is left in the history",
        step(f"RUN |1 GIT_TOKEN={TOKEN} /bin/sh -c make"),
    ),
    Fault(
        "secret-netrc",
        COLUMN,
        "secret",
        "secrets",
        ("/root/.netrc", "logins"),
        "logins are left in a file",
        written("/root/.netrc", "machine example.org login a password b\n"),
    ),
    Fault(
        "secret-pip",
        COLUMN,
        "secret",
        "secrets",
        ("/etc/pip.conf", "index"),
        "the build's package index is left",
        written("/etc/pip.conf", "[global]\nindex-url = https://index.example/\n"),
    ),
    Fault(
        "secret-key",
        COLUMN,
        "secret",
        "secrets",
        ("/etc/ssl/private/site.key", "private key"),
        "a private key is left",
        written("/etc/ssl/private/site.key", "-----BEGIN " + "PRIVATE KEY-----\nabc\n"),
    ),
    Fault(
        "secret-apt-proxy",
        COLUMN,
        "secret",
        "secrets",
        ("/etc/apt/apt.conf.d/01proxy", "proxy"),
        "apt's proxy is left",
        written("/etc/apt/apt.conf.d/01proxy", 'Acquire::http::Proxy "http://p.example:1";\n'),
    ),
    Fault(
        "secret-label",
        COLUMN,
        "secret",
        "secrets",
        ("label org.example.password",),
        "a password is left in a label",
        label("org.example.password", "correct horse"),
        open="names of labels are parted by dots, and only words between underscores are looked at",
    ),
    Fault(
        "secret-script",
        COLUMN,
        "secret",
        "secrets",
        ("/usr/local/bin/fetch-models", "GitHub token"),
        "a token is left in a script",
        written("/usr/local/bin/fetch-models", f"#!/bin/sh\nTOKEN={TOKEN}\n", 0o755),
        open="only files in which settings are known to stand are looked into",
    ),
    Fault(
        "open-file",
        COLUMN,
        "rights",
        "world-writable",
        (f"{SITE}/vllm/envs.py", "0666"),
        "anyone may change the code",
        mode(f"{SITE}/vllm/envs.py", 0o666),
    ),
    Fault(
        "open-folder",
        COLUMN,
        "rights",
        "world-writable",
        ("/opt/vllm/bin", "0777"),
        "anyone may put programs beside the server's",
        mode("/opt/vllm/bin", 0o777),
    ),
    Fault(
        "set-id",
        COLUMN,
        "rights",
        "set-id",
        ("/usr/local/bin/become", "uid 0"),
        "a program runs as root whoever starts it",
        written("/usr/local/bin/become", "#!/bin/sh\n", 0o4755),
    ),
)

CONTRACT_FAULTS: tuple[Fault, ...] = (*CONTRACTS, *JIT, *SIZE, *SECRETS)
