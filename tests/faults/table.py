"""Every seeded fault, and why the rows that have none have none yet."""

from __future__ import annotations

from tests.faults.contract_faults import CONTRACT_FAULTS
from tests.faults.model import Fault
from tests.faults.native_faults import NATIVE_FAULTS
from tests.faults.package_faults import PACKAGE_FAULTS
from tests.faults.registry_faults import REGISTRY_FAULTS
from tests.faults.server_faults import SERVER_FAULTS
from tests.faults.tree_faults import TREE_FAULTS
from tests.faults.wheel_faults import WHEEL_FAULTS

FAULTS: tuple[Fault, ...] = (
    *NATIVE_FAULTS,
    *PACKAGE_FAULTS,
    *CONTRACT_FAULTS,
    *WHEEL_FAULTS,
    *TREE_FAULTS,
    *REGISTRY_FAULTS,
    *SERVER_FAULTS,
)

ROWS = 44
"""Rows of the list of real failures."""

NOT_SEEDED: dict[int, str] = {
    11: "needs code objects for GPUs of chosen architectures, kernel by kernel; no GPU image is built yet",
    13: "needs a ROCm build whose target list can be cut; no GPU image is built yet",
    14: "needs a maths library with kernels for chosen architectures; no GPU image is built yet",
    26: "a missing image of a family is seen in the registry after publishing; the audit is not there yet",
    27: "a tag for two architectures needs a second one; the audit is not there yet",
    39: "needs a run on two devices; the extended profile is to have it",
    40: "a setting that is refused before it is tried needs the preflight, which is not there yet",
}
"""Rows without a fault, and the reason."""
