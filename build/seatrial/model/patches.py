"""Read what a patch file says about itself: mail headers, DEP-3 fields, touched paths, hunks."""

from __future__ import annotations

import re

from seatrial.model.errors import FixError, LockError

DEP3_REQUIRED = ("Description", "Origin")
"""Fields that every patch's message must have; the others of DEP-3 are optional."""

TRAILER = "Seatrial-Fix"
"""Line in a commit's message that says which fix it is. Patch files do not have it: their folder says it."""

_MAIL_HEADERS = (b"From: ", b"Date: ", b"Subject: ")
_DIFF = re.compile(rb"^diff --git ", re.MULTILINE)
_BODY_END = re.compile(rb"^(?:---$|diff )", re.MULTILINE)
_FIELD = re.compile(r"^([A-Z][A-Za-z]*(?:-[A-Z][A-Za-z]*)*): ?(.*)$")
_LINK_MODE = re.compile(rb"^(?:new file mode|new mode) (?:120000|160000)$", re.MULTILINE)
_UNFIT = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]|^[A-Za-z]:")
"""Control characters, backslashes, bytes that are no UTF-8, and drive letters."""
_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


def split_mail(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a patch into its mail headers, its message and its diff; joined they are the patch again."""
    blank = data.find(b"\n\n")
    if blank < 0:
        return data, b"", b""
    found = _BODY_END.search(data, blank + 1)
    end = found.start() if found else len(data)
    return data[: blank + 2], data[blank + 2 : max(end, blank + 2)], data[max(end, blank + 2) :]


def dep3_fields(data: bytes) -> dict[str, str]:
    """Return the DEP-3 fields of a patch's message, continued lines joined."""
    fields: dict[str, str] = {}
    current = ""
    for line in split_mail(data)[1].decode(errors="replace").splitlines():
        match = _FIELD.match(line)
        if match:
            current = match.group(1)
            fields[current] = match.group(2).strip()
        elif line.startswith(" ") and current:
            fields[current] = f"{fields[current]} {line.strip()}".strip()
        else:
            current = ""
    return fields


def check_form(data: bytes, origin: str) -> None:
    """Refuse a patch that `git am` would not take as one commit with a DEP-3 header.

    Raises:
        LockError: names what is missing.
    """
    do = "commit the change in a tree made by `seatrial apply` and run `seatrial export` on it"
    headers = b"\n" + split_mail(data)[0]
    for header in _MAIL_HEADERS:
        if not data.startswith(b"From ") or b"\n" + header not in headers:
            raise LockError(f"{origin} is not in git-am form", why=f"no {header.decode().strip()} header", do=do)
    if len(re.findall(rb"^From [0-9a-f]{40} ", data, re.MULTILINE)) != 1:
        raise LockError(f"{origin} holds more than one commit", why="a fix is one commit", do=do)
    fields = dep3_fields(data)
    missing = [name for name in DEP3_REQUIRED if not fields.get(name)]
    if missing:
        raise LockError(f"{origin} has no {' and no '.join(missing)}", why="a patch needs a DEP-3 header", do=do)


def touched_paths(data: bytes, origin: str) -> tuple[str, ...]:
    """Return the tree paths that a patch touches, sorted.

    Raises:
        FixError: a path leaves the tree or is a link.
        LockError: a path stands in a form that the export never writes, or there is none.
    """
    do = "make the patch again with `seatrial export`"
    if _LINK_MODE.search(data):
        raise FixError(f"{origin} makes a symbolic link or a submodule", do="make plain files only")
    paths = set()
    for match in _DIFF.finditer(data):
        line = data[match.end() : data.index(b"\n", match.end())].decode(errors="replace")
        path = line[2 : len(line) // 2]
        if line != f"a/{path} b/{path}":
            raise LockError(f"{origin} renames a file or quotes a path", why=f"diff --git {line}", do=do)
        if not is_inside(path):
            raise FixError(f"{origin} touches a file outside of the tree", why=repr(path), do=do)
        paths.add(path)
    if not paths:
        raise LockError(f"{origin} changes nothing", do=do)
    return tuple(sorted(paths))


def with_fix_id(data: bytes, fix_id: str) -> bytes:
    """Return the patch with the trailer that names its fix at the end of the message."""
    headers, message, diff = split_mail(data)
    return headers + message.rstrip(b"\n") + f"\n\n{TRAILER}: {fix_id}\n".encode() + diff


def take_fix_id(message: str) -> tuple[str, str]:
    """Return the fix that a commit message names, empty when it names none, and the message without that line."""
    found = ""
    kept = []
    for line in message.rstrip("\n").split("\n"):
        if line.startswith(f"{TRAILER}: "):
            found = line.removeprefix(f"{TRAILER}: ").strip()
        else:
            kept.append(line)
    return found, "\n".join(kept).rstrip("\n") + "\n"


def is_inside(path: str) -> bool:
    """Tell whether a relative POSIX path stays in its tree, can be printed, and is no business of git's."""
    if _UNFIT.search(path):
        return False
    return not any(part in ("", ".", "..") or part.lower() == ".git" for part in path.split("/"))


def hunk_at(data: bytes, path: str, line: int) -> str:
    """Return the header of the hunk of a file that starts at an old line, or an empty text."""
    inside = False
    for text in data.decode(errors="replace").splitlines():
        if text.startswith("diff --git "):
            inside = text == f"diff --git a/{path} b/{path}"
        match = _HUNK.match(text)
        if inside and match and int(match.group(1)) == line:
            return text
    return ""
