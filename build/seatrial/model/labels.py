"""The labels that say what an image is; made here, compared by inspect, read back by naming."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from seatrial.model.base import BaseLock
from seatrial.model.fixes import AppliedFix
from seatrial.model.names import INPUTS_LABEL, REVISION_LABEL
from seatrial.model.record import SkippedFix

OCI = "org.opencontainers.image."
PLATFORM_LABEL = "org.seatrial.platform"
BASE_VERSION_LABEL = "org.seatrial.base.version"
BASE_COMMIT_LABEL = "org.seatrial.base.commit"
FIXES_LABEL = "org.seatrial.fixes"
LEFT_OUT_LABEL = "org.seatrial.fixes.left-out"
SERIES_LABEL = "org.seatrial.series"
SOURCE_LABEL = "org.seatrial.source"


def make_labels(
    *,
    lock: BaseLock,
    platform: str,
    revision: int,
    wheel_version: str,
    applied: Sequence[AppliedFix],
    skipped: Sequence[SkippedFix],
    series_sha256: str,
    inputs_sha256: str,
    source_revision: str,
    epoch: int,
) -> dict[str, str]:
    """Return every label of an image, sorted.

    Args:
        applied: fixes inside, written as `id=verdict`.
        skipped: fixes that are not inside, written in the same way.
        epoch: SOURCE_DATE_EPOCH of the build, seconds; the image's creation time for whoever reads labels.
    """
    labels = {
        f"{OCI}title": f"vLLM {lock.version} for {platform}",
        f"{OCI}version": wheel_version,
        f"{OCI}revision": lock.source.commit,
        f"{OCI}source": lock.source.git,
        f"{OCI}created": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        f"{OCI}licenses": "Apache-2.0",
        PLATFORM_LABEL: platform,
        BASE_VERSION_LABEL: lock.version,
        BASE_COMMIT_LABEL: lock.source.commit,
        FIXES_LABEL: ",".join(f"{fix.id}={fix.verdict.value}" for fix in applied) or "none",
        LEFT_OUT_LABEL: ",".join(f"{fix.id}={fix.verdict.value}" for fix in skipped) or "none",
        SERIES_LABEL: series_sha256,
        SOURCE_LABEL: source_revision,
        REVISION_LABEL: str(revision),
        INPUTS_LABEL: inputs_sha256,
    }
    return dict(sorted(labels.items()))
