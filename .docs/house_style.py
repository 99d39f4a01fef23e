"""Griffe extension: what the house writes in docstrings and comments, as Markdown.

Roles such as :func:`psychlm.lm.load` become links where the page has such a heading, and code where it has not; the
comment behind a dataclass's field, where units stand, becomes the field's description.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|mod|data|meth|attr):`(~?)([\w.]+)`")
COMMENT = re.compile(r"^\s+\w+: .*?[^'\"]  # (?!noqa|type:|fmt:)(?P<said>.+)$")


def _link(match: re.Match[str]) -> str:
    short, name = match.groups()
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref optional identifier="{name}"><code>{shown}</code></autoref>'


class HouseStyle(griffe.Extension):
    """Rewrites docstrings when a module has been read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Turn the roles of a docstring into links."""
        if obj.docstring:
            obj.docstring.value = ROLE.sub(_link, obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Describe a field by the comment behind it."""
        if attr.docstring or attr.lineno is None or attr.parent is None or not attr.parent.is_class:
            return
        lines = attr.lines_collection[attr.filepath]  # type: ignore[index]
        if found := COMMENT.match(lines[attr.lineno - 1]):
            attr.docstring = griffe.Docstring(found["said"], lineno=attr.lineno, parent=attr)
