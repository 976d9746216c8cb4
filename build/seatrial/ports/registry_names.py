"""The names in a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from seatrial.model.errors import RegistryError
from seatrial.ports.registry import Manifest, Registry


class RegistryNames:
    """A :class:`seatrial.model.names.NameStore` over one repository of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @property
    def where(self) -> str:
        """Return `HOST/REPO`."""
        return str(self._registry.target)

    def tags(self) -> Sequence[str]:
        """Return every tag."""
        return self._registry.tags()

    def digest(self, tag: str) -> str | None:
        """Return the digest that a tag stands for, or None."""
        found = self._registry.manifest(tag)
        return None if found is None else found.digest

    def labels(self, digest: str) -> Mapping[str, str]:
        """Return an image's labels; RegistryError when the repository does not hold it."""
        manifest = self._held(digest)
        config = manifest.parsed().get("config")
        if not isinstance(config, dict):
            return {}  # an index: it has no labels of its own, and whoever made it was not seatrial
        try:
            data = json.loads(self._registry.small_blob(str(config.get("digest"))))
            labels = (data.get("config") or {}).get("Labels")
        except (ValueError, AttributeError):
            raise RegistryError(f"{self.where} holds {digest} with a configuration that is none") from None
        return {str(key): str(value) for key, value in (labels or {}).items()}

    def put_tag(self, tag: str, digest: str) -> None:
        """Let a tag stand for an image of the repository: its bytes again, under the tag."""
        self._registry.put_tag(tag, self._held(digest))

    def _held(self, digest: str) -> Manifest:
        manifest = self._registry.manifest(digest)
        if manifest is None:
            raise RegistryError(f"{self.where} does not hold {digest}", do="push the image by its digest first")
        return manifest
