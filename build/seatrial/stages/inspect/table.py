"""The table of checks: one row each. A new check is a function and a row."""

from __future__ import annotations

from seatrial.stages.inspect.access import check_readable, check_shell
from seatrial.stages.inspect.builds import check_accelerator, check_arch_variables, check_siblings
from seatrial.stages.inspect.called import check_operators_called
from seatrial.stages.inspect.contract import check_environment, check_labels, check_run_contract
from seatrial.stages.inspect.distributions import (
    check_distributions,
    check_module_owners,
    check_records,
    check_requirements,
    check_vllm_record,
)
from seatrial.stages.inspect.extensions import check_extensions
from seatrial.stages.inspect.files import check_leftovers, check_set_id, check_size, check_world_writable
from seatrial.stages.inspect.identity import (
    check_locked_files,
    check_one_version,
    check_patched_files,
    check_version,
)
from seatrial.stages.inspect.jit import check_jit, check_kernels
from seatrial.stages.inspect.layers import check_layers
from seatrial.stages.inspect.native import check_native_closure
from seatrial.stages.inspect.ownership import check_import_names, check_import_paths
from seatrial.stages.inspect.secrets import check_secrets
from seatrial.stages.inspect.subject import Check, Image
from seatrial.stages.inspect.symbols import check_symbol_versions, check_symbols

CHECKS: tuple[Check[Image], ...] = (
    Check(
        "native-closure",
        "Every native file finds every library that it needs, inside the image.",
        "Install the library in the stage that ships, or put its folder where the loader looks.",
        check_native_closure,
    ),
    Check(
        "symbols",
        "Every name that a native file asks of its libraries is in the ones that it gets.",
        "Compile it against the torch and the libraries that the image installs, with all of its sources.",
        check_symbols,
    ),
    Check(
        "symbol-versions",
        "No native file asks for a newer C or C++ library, or other versioned one, than the image holds.",
        "Build on the older system, or ship the newer one.",
        check_symbol_versions,
    ),
    Check(
        "distributions",
        "The installed distributions are the locked ones: nothing extra, missing or twice.",
        "Build the image from the lock alone, or write the lock again.",
        check_distributions,
        needs_expectation=True,
    ),
    Check(
        "locked-files",
        "What each distribution installed is what the locked wheel holds, file by file.",
        "Install from the lock with hashes, and let nothing be built or fetched beside it.",
        check_locked_files,
        needs_expectation=True,
    ),
    Check(
        "requirements",
        "What each distribution requires is installed in a version that it accepts.",
        "Solve the lock again so that its versions agree.",
        check_requirements,
    ),
    Check(
        "siblings",
        "Packages that are released together are of one release and one build.",
        "Pin them together.",
        check_siblings,
    ),
    Check(
        "module-owners",
        "No file belongs to two distributions that ship different bytes for it.",
        "Leave one of the distributions out.",
        check_module_owners,
    ),
    Check(
        "import-names",
        "No module's name is brought by two distributions, of which Python takes one.",
        "Leave one of them out, or install the one that has to win alone.",
        check_import_names,
    ),
    Check(
        "import-paths",
        "Nothing but the installed distributions decides what an import finds.",
        "Remove the path file, variable or folder, or install what it leads to.",
        check_import_paths,
    ),
    Check(
        "accelerator",
        "vLLM, torch and the platform are built for one accelerator.",
        "Pin the build by its local version or hash, from one source.",
        check_accelerator,
    ),
    Check(
        "one-version",
        "Tag, labels, variables, metadata and module say one version and one commit.",
        "Throw the stale layer away, and make tag and labels from what was installed.",
        check_one_version,
    ),
    Check(
        "version",
        "Metadata, module and commit name the base that was built.",
        "Throw the stale layer or wheel away and build from the pinned base.",
        check_version,
        needs_expectation=True,
    ),
    Check(
        "patched-files",
        "The files that the fixes changed are the ones in the image.",
        "Install the patched wheel in the stage that ships, last.",
        check_patched_files,
        needs_expectation=True,
    ),
    Check(
        "vllm-record",
        "Every file of vLLM has the digest that its RECORD promises, and no other file stands among them.",
        "Install vLLM from its wheel and change nothing afterwards.",
        check_vllm_record,
    ),
    Check(
        "records",
        "Every file of every other distribution has the digest that its RECORD promises.",
        "Find the step that changes installed files, and declare it or drop it.",
        check_records,
    ),
    Check(
        "labels",
        "The labels say what was built.",
        "Set labels from the build's own values.",
        check_labels,
        needs_expectation=True,
    ),
    Check(
        "environment",
        "The image sets the variables of its platform's row.",
        "Set them in the Dockerfile from the platform's row.",
        check_environment,
        needs_expectation=True,
    ),
    Check(
        "arch-variables",
        "No variable makes a kernel library take the chip for another.",
        "Set it for the build alone.",
        check_arch_variables,
    ),
    Check(
        "run-contract",
        "Any user can start the image through its entrypoint, watch its health and end it.",
        "Correct USER, ENTRYPOINT, HOME, HEALTHCHECK or STOPSIGNAL in the Dockerfile.",
        check_run_contract,
    ),
    Check(
        "readable",
        "Any user can read Python and its packages.",
        "Install Python outside of /root, and with the usual modes.",
        check_readable,
    ),
    Check(
        "world-writable",
        "Nothing can be written by everyone, save sticky folders for temporary files.",
        "Take the right away, or declare the path with its reason in the platform's row.",
        check_world_writable,
    ),
    Check(
        "set-id",
        "No program runs with more rights than its caller, save Debian's own.",
        "Clear the bit or leave the package out.",
        check_set_id,
    ),
    Check(
        "size",
        "The image holds no more beyond its wheels than the platform's budget.",
        "Leave out what serving does not need, or raise the budget in the platform's row and say why.",
        check_size,
        needs_expectation=True,
    ),
    Check(
        "kernels",
        "Folders of kernels that were compiled ahead are not empty.",
        "Make the step that compiles them fail when it makes nothing.",
        check_kernels,
    ),
    Check(
        "jit",
        "Whatever compiles while it serves finds its compiler, headers and libraries.",
        "Ship them, bring the kernels compiled, or switch the compiler off.",
        check_jit,
    ),
    Check(
        "leftovers",
        "Compilers, headers, caches, logs and archives of the build are not inside.",
        "Remove it in the step that makes it, or declare it with its reason in the platform's row.",
        check_leftovers,
    ),
    Check(
        "secrets",
        "No secret, proxy or private address of the build is inside.",
        "Pass it as a build secret, and replace it where it leaked.",
        check_secrets,
    ),
    Check(
        "layers",
        "No layer keeps a secret, or much else, that a later layer hides.",
        "Delete a file in the step that makes it; mount secrets instead of copying them.",
        check_layers,
    ),
    Check(
        "shell",
        "A shell starts in place of the entrypoint, and nothing is loaded into every process.",
        "Set preloads in the entrypoint for its own process.",
        check_shell,
    ),
    Check(
        "extensions",
        "Every vLLM extension loads by name in the image and registers its operators.",
        "See the extension's own words; torch and the wheel have to be built for each other.",
        check_extensions,
    ),
    Check(
        "operators-called",
        "Every operator that the code for this device calls is registered by an extension.",
        "Build the extension with all of its parts, or declare what this build lacks in images/operators/.",
        check_operators_called,
    ),
)
"""In the order in which they run; those that start a container are last."""

CASES = tuple(check.name for check in CHECKS)
"""Names of all checks, for the gate's policy."""
