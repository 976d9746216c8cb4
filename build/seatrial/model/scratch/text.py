"""Read sources as Python reads them: their encoding, and where their lines end."""

from __future__ import annotations

import io
import re
import tokenize

from seatrial.model.errors import IntegrityError

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")


def source_text(data: bytes, path: str) -> str:
    """Return a module's text, decoded as its first lines say, without a byte order mark.

    Raises:
        IntegrityError: the bytes are not in the encoding that the module is in.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, ValueError) as error:
        raise IntegrityError(
            f"{path} is no valid Python", why=str(error), do="mend the file, or take the tree from its source again"
        ) from error


def source_lines(text: str) -> list[str]:
    """Return the lines of a module with their ends, counted as Python does: a form feed ends none."""
    return _LINE.findall(text)


def says_encoding(text: str) -> bool:
    """Tell whether a module's text names an encoding, which its text is not in any more."""
    return "coding" in "".join(source_lines(text[:400])[:2])
