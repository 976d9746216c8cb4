"""The end of a build: the gate's question, the names, the registry, the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import docker

from seatrial.flow.plan import BuildPlan
from seatrial.flow.shop import Shop
from seatrial.model.gate import Policy, decide, left_out_of
from seatrial.model.names import choose_revision, existing_revisions
from seatrial.model.record import Record, SkippedFix
from seatrial.ports.engine_names import EngineNames, save_archive
from seatrial.ports.registry import Registry
from seatrial.ports.registry_http import parse_target
from seatrial.ports.registry_login import config_folder, read_login
from seatrial.ports.registry_names import RegistryNames
from seatrial.stages.naming import give_names, require_allowed
from seatrial.stages.push import push_by_digest
from seatrial.stages.record import Ingredients, ReportFile, make_record, read_record, write_record


@dataclass(frozen=True, slots=True)
class Tried:
    """An image with everything that the gate will look at."""

    digest: str
    size: int
    reports: tuple[ReportFile, ...]
    skipped: tuple[SkippedFix, ...]


def revision_for(plan: BuildPlan, client: docker.DockerClient, inputs_sha256: str) -> int:
    """Return the revision that this build is, from the names that the engine and the registry hold."""
    existing = existing_revisions(EngineNames(client), plan.line)
    if plan.request.push is not None:
        with open_registry(plan.request.push) as registry:
            existing += existing_revisions(RegistryNames(registry), plan.line)
    return choose_revision(existing, inputs_sha256, plan.request.revision)


def open_registry(target: str) -> Registry:
    """Return a client for `HOST[:PORT]/REPO` with the login that docker would use."""
    place = parse_target(target)
    return Registry(place, read_login(place.host, config_folder()))


def policy_of(plan: BuildPlan, skipped: Sequence[SkippedFix]) -> Policy:
    """Return what this build's image needs before it gets a name."""
    meant = [loaded.id for loaded in plan.series.ordered() if loaded.suits(plan.platform)]
    return Policy(
        base=plan.lock.version,
        platform=plan.platform.name,
        device=plan.platform.device,
        requirements=plan.requirements,
        left_out=left_out_of(skipped, meant),
    )


def name_and_record(
    shop: Shop,
    plan: BuildPlan,
    client: docker.DockerClient,
    revision: int,
    *,
    tried: Tried,
    ingredients: Ingredients,
) -> Record:
    """Ask the gate, bring the image to the registry when asked to, give the names, leave the record.

    Raises:
        RefusedError: the gate refuses, or a name stands for another image.
        RegistryError, EngineError: a store does not do its part.
    """
    policy = policy_of(plan, tried.skipped)
    reports = [file.report for file in tried.reports]
    require_allowed(decide(tried.digest, reports, policy), plan.line, policy, shop.console)
    locks = shop.cache.root / "locks"
    pushed: tuple[str, ...] = ()
    if plan.request.push is not None:
        pushed = _push(shop, plan, client, revision, tried=tried, policy=policy)
    names = give_names(
        EngineNames(client),
        tried.digest,
        plan.line,
        revision,
        reports=reports,
        policy=policy,
        lock=locks / "engine-names.lock",
        console=shop.console,
    )
    return _record(shop, plan, revision, tried=tried, ingredients=ingredients, names=names, pushed=pushed)


def _push(
    shop: Shop, plan: BuildPlan, client: docker.DockerClient, revision: int, *, tried: Tried, policy: Policy
) -> tuple[str, ...]:
    """Upload nameless, then name there; before the engine's names, because a registry is what fails."""
    assert plan.request.push is not None
    with open_registry(plan.request.push) as registry:
        done = push_by_digest(
            tried.digest,
            archive=shop.cache.root / "work" / "push.tar",
            save=lambda path: save_archive(client, tried.digest, path),
            size=tried.size,
            registry=registry,
            console=shop.console,
        )
        names = give_names(
            RegistryNames(registry),
            tried.digest,
            plan.line,
            revision,
            reports=[file.report for file in tried.reports],
            policy=policy,
            lock=shop.cache.root / "locks" / "registry-names.lock",
            console=shop.console,
        )
    return (done.reference, *names)


def _record(
    shop: Shop,
    plan: BuildPlan,
    revision: int,
    *,
    tried: Tried,
    ingredients: Ingredients,
    names: Sequence[str],
    pushed: Sequence[str],
) -> Record:
    """Write the record, or keep the one that says the same already."""
    path = plan.out / f"r{revision}.json"
    record = make_record(
        ingredients,
        plan.line,
        revision,
        reports=tried.reports,
        names=names,
        pushed=pushed,
        fallbacks=shop.console.fallbacks,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if path.is_file():
        kept = read_record(path)
        known = record.model_copy(
            update={
                "created": kept.created,
                "fallbacks": kept.fallbacks if not record.fallbacks else record.fallbacks,
                "pushed": tuple(dict.fromkeys((*kept.pushed, *record.pushed))),
            }
        )
        if known == kept:
            shop.console.line(f"record: {path} (unchanged)")
            return kept
        record = known if kept.image.digest == record.image.digest else record
    write_record(record, path)
    shop.console.line(f"record: {path}")
    return record
