"""Griffe extension: roles and comments of fields in docstrings, as Markdown.

Roles such as :func:`psychlm.lm.load` become links if a page has such a heading, else code; the
comments behind a class's fields, with their units, become its table of attributes.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|mod|data|meth|attr):`(~?)([\w.]+)`")
FIELD = re.compile(
    r"^\s+(?P<name>[a-z]\w*): (?P<type>.+?)(?: = .+?)?  # (?!noqa|type:|fmt:)(?P<said>.+)$"
)


def _link(match: re.Match[str]) -> str:
    short, name = match.groups()
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref optional identifier="{name}"><code>{shown}</code></autoref>'


class DocstringStyle(griffe.Extension):
    """Rewrite docstrings as modules are read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Turn the roles of a docstring into links."""
        if obj.docstring:
            obj.docstring.value = ROLE.sub(_link, obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Describe the fields of a class by the comments behind them."""
        if not cls.docstring or "\nAttributes\n" in cls.docstring.value:
            return
        fields = [FIELD.match(line) for line in cls.lines]
        rows = [
            f"{found['name']} : {found['type']}\n    {found['said']}" for found in fields if found
        ]
        if rows:
            cls.docstring.value += "\n\nAttributes\n----------\n" + "\n".join(rows)
