"""The table of checks: one row each. A new check is a function and a row."""

from __future__ import annotations

from seatrial.stages.inspect.contract import check_environment, check_labels, check_run_contract
from seatrial.stages.inspect.distributions import (
    check_distributions,
    check_module_owners,
    check_patched_files,
    check_records,
    check_requirements,
    check_version,
    check_vllm_record,
)
from seatrial.stages.inspect.extensions import check_extensions
from seatrial.stages.inspect.files import check_leftovers, check_set_id, check_size, check_world_writable
from seatrial.stages.inspect.native import check_native_closure
from seatrial.stages.inspect.secrets import check_secrets
from seatrial.stages.inspect.subject import Check, Image

CHECKS: tuple[Check[Image], ...] = (
    Check(
        "native-closure",
        "Every native file finds every library that it needs, inside the image.",
        "Install the library in the stage that ships, or put its folder where the loader looks.",
        check_native_closure,
    ),
    Check(
        "distributions",
        "The installed distributions are the locked ones: nothing extra, missing or twice.",
        "Build the image from the lock alone, or write the lock again.",
        check_distributions,
        needs_expectation=True,
    ),
    Check(
        "requirements",
        "What each distribution requires is installed in a version that it accepts.",
        "Solve the lock again so that its versions agree.",
        check_requirements,
    ),
    Check(
        "module-owners",
        "No file belongs to two distributions that ship different bytes for it.",
        "Leave one of the distributions out.",
        check_module_owners,
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
        "run-contract",
        "Any user can start the image through its entrypoint, watch its health and end it.",
        "Correct USER, ENTRYPOINT, HOME, HEALTHCHECK or STOPSIGNAL in the Dockerfile.",
        check_run_contract,
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
        "extensions",
        "Every vLLM extension loads by name in the image and registers its operators.",
        "See the extension's own words; torch and the wheel have to be built for each other.",
        check_extensions,
    ),
)
"""In the order in which they run; the one that starts a container is last."""

CASES = tuple(check.name for check in CHECKS)
"""Names of all checks, for the gate's policy."""
