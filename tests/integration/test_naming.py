"""Names in a real engine: the same rules as in a registry, on images that were loaded without a name."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from seatrial.model.errors import EngineError, IntegrityError, RefusedError
from seatrial.model.names import choose_revision, existing_revisions
from seatrial.ports.console import Console
from seatrial.ports.engine_names import EngineNames, save_archive
from seatrial.ports.oci_archive import OciArchive
from seatrial.stages.naming import give_names
from tests.nameslab import LINE, POLICY, SmallImage, make_image, reports

pytestmark = pytest.mark.engine


class Engine:
    """A repository of its own in the engine of this machine."""

    def __init__(self, client: docker.DockerClient, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.repository = f"seatrial-test-{uuid.uuid4().hex[:12]}"
        self.names = EngineNames(client, self.repository)
        self.loaded: list[str] = []

    def load(self, revision: int, layers: Sequence[bytes], labels: dict[str, str] | None = None) -> SmallImage:
        """Load a new image, nameless; a salt keeps it apart from those of other runs."""
        path = self.folder / f"{len(self.loaded)}.tar"
        image = make_image(path, revision, [*layers, self.repository.encode()], labels)
        with path.open("rb") as stream:
            self.client.images.load(stream)
        self.loaded.append(image.digest)
        return image

    def name(self, image: SmallImage, revision: int, *, bad: str = "") -> tuple[str, ...]:
        return give_names(
            self.names,
            image.digest,
            LINE,
            revision,
            reports=reports(image.digest, bad=bad),
            policy=POLICY,
            lock=self.folder / "lock",
            console=Console(out=io.StringIO(), ci=False),
        )

    def tags(self) -> dict[str, str]:
        """Ask the engine in another way than EngineNames does: tag to Id."""
        return {
            tag.removeprefix(f"{self.repository}:"): image.id
            for image in self.client.images.list()
            for tag in image.tags
            if tag.startswith(f"{self.repository}:")
        }

    def clear(self) -> None:
        for digest in self.loaded:
            try:
                self.client.images.remove(digest, force=True)
            except ImageNotFound:
                continue


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    try:
        client = docker.from_env()
        status = dict(client.info().get("DriverStatus") or [])
    except DockerException as error:
        pytest.skip(f"not run: no engine answers here ({error})")
    if status.get("driver-type") != "io.containerd.snapshotter.v1":
        pytest.skip("not run: the engine has no containerd store, so its Ids are not manifest digests")
    lab = Engine(client, tmp_path)
    try:
        yield lab
    finally:
        lab.clear()
        client.close()


def test_an_image_is_loaded_nameless_and_named_after_the_gate(engine: Engine) -> None:
    image = engine.load(1, [b"one"])
    assert engine.tags() == {}
    expected = (f"{engine.repository}:0.28.0-cpu-r1", f"{engine.repository}:0.28.0-cpu")
    assert engine.name(image, 1) == expected
    assert engine.name(image, 1) == expected
    assert engine.tags() == {"0.28.0-cpu-r1": image.digest, "0.28.0-cpu": image.digest}


def test_a_refused_image_has_no_name(engine: Engine) -> None:
    image = engine.load(1, [b"one"])
    with pytest.raises(RefusedError, match="no name"):
        engine.name(image, 1, bad="ready")
    assert engine.tags() == {}


def test_a_number_is_given_once_and_the_moving_name_goes_forward(engine: Engine) -> None:
    one, two, three = (engine.load(index, [b"%d" % index]) for index in (1, 2, 3))
    rival = engine.load(2, [b"rival"])
    engine.name(one, 1)
    engine.name(three, 3)
    assert engine.name(two, 2) == (f"{engine.repository}:0.28.0-cpu-r2",)
    with pytest.raises(RefusedError, match="already stands for"):
        engine.name(rival, 2)
    assert engine.tags() == {
        "0.28.0-cpu-r1": one.digest,
        "0.28.0-cpu-r2": two.digest,
        "0.28.0-cpu-r3": three.digest,
        "0.28.0-cpu": three.digest,
    }
    taken = existing_revisions(engine.names, LINE)
    assert [number for number, _ in taken] == [1, 2, 3]
    assert choose_revision(taken, dict(taken)[2]) == 2


class StopsAfterOne(EngineNames):
    """Give the first name and then break off, as a killed process does."""

    def put_tag(self, tag: str, digest: str) -> None:
        super().put_tag(tag, digest)
        raise KeyboardInterrupt


def test_a_run_that_broke_off_between_the_names_is_completed(engine: Engine) -> None:
    image = engine.load(1, [b"one"])
    whole, engine.names = engine.names, StopsAfterOne(engine.client, engine.repository)
    with pytest.raises(KeyboardInterrupt):
        engine.name(image, 1)
    assert engine.tags() == {"0.28.0-cpu-r1": image.digest}
    engine.names = whole
    engine.name(image, 1)
    assert engine.tags() == {"0.28.0-cpu-r1": image.digest, "0.28.0-cpu": image.digest}


def test_a_moving_name_of_somebody_elses_is_left_alone(engine: Engine) -> None:
    stranger = engine.load(1, [b"stranger"], labels={})
    engine.names.put_tag(LINE.moving_tag, stranger.digest)
    image = engine.load(1, [b"one"])
    with pytest.raises(RefusedError, match="states no revision"):
        engine.name(image, 1)
    assert engine.tags() == {"0.28.0-cpu": stranger.digest}


def test_an_image_is_not_named_against_its_label(engine: Engine) -> None:
    with pytest.raises(IntegrityError, match="cannot become revision 2"):
        engine.name(engine.load(1, [b"one"]), 2)
    assert engine.tags() == {}


def test_other_repositories_are_not_seen(engine: Engine) -> None:
    image = engine.load(1, [b"one"])
    for repository in (f"{engine.repository}x", f"x/{engine.repository}"):
        EngineNames(engine.client, repository).put_tag("0.28.0-cpu-r9", image.digest)
    assert list(engine.names.tags()) == []


def test_the_engine_gives_the_archive_back_with_the_same_manifest(engine: Engine, tmp_path: Path) -> None:
    image = engine.load(1, [b"one"])
    save_archive(engine.client, image.digest, tmp_path / "again.tar")
    archive = OciArchive(tmp_path / "again.tar")
    assert archive.small(image.digest) == image.manifest
    for digest, data in image.blobs.items():
        assert b"".join(archive.chunks(digest)) == data


@pytest.mark.parametrize(
    "asked",
    [
        lambda names, digest: names.labels(digest),
        lambda names, digest: names.put_tag("0.28.0-cpu-r1", digest),
    ],
    ids=["labels", "put_tag"],
)
def test_an_image_that_the_engine_does_not_hold_is_one_clear_error(
    engine: Engine, asked: Callable[[EngineNames, str], object]
) -> None:
    with pytest.raises(EngineError, match="the container engine could not") as caught:
        asked(engine.names, "sha256:" + "0" * 64)
    assert "\n" not in str(caught.value)


def test_an_engine_that_is_down_is_one_clear_error(tmp_path: Path) -> None:
    client = docker.DockerClient(base_url=f"unix://{tmp_path}/none.sock", version="1.41")
    with pytest.raises(EngineError, match="could not list its images"):
        EngineNames(client).tags()
    with pytest.raises(EngineError, match="could not save"):
        save_archive(client, "sha256:" + "0" * 64, tmp_path / "image.tar")
