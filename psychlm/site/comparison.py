"""A recorded number beside the published one: how far apart, and whether they agree as far as the paper printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

Verdict = Literal["agrees", "differs", "simulated", "no comparison"]


@dataclass(frozen=True)
class Comparison:
    """One recorded number, ready to be shown."""

    notebook: str
    key: str
    ours: str
    published: str
    difference: str
    verdict: Verdict
    decimals: int  # of the published number
    unit: str
    source: str
    data: str
    order: tuple[
        float | None, float | None, float | None
    ]  # ours, published, difference, to sort by

    @property
    def says(self) -> str:
        """The verdict in words."""
        if self.verdict in ("agrees", "differs") and self.decimals:
            return f"{self.verdict} at {self.decimals} decimal{'s' * (self.decimals > 1)}"
        return {"simulated": "simulated: not compared", "no comparison": "not compared"}.get(
            self.verdict, self.verdict
        )


def compare(report: dict[str, Any]) -> list[Comparison]:
    """Return the numbers of a report beside the published ones.

    A number on simulated data is never said to agree: whatever it is, it does not reproduce a published one. Nor is
    one that was recorded with ``comparable=False`` (the mean of many draws, where the paper printed one of them). The
    decimals are those of the published number where it was recorded as a text. A float has lost its trailing zeros, so
    it is given the decimals of the longest one of its kind (same paper and table, last part of the key, and unit).
    """
    numbers = report["numbers"]
    longest: dict[tuple[str, ...], int] = {}
    for number in numbers:
        kind = _kind(number)
        longest[kind] = max(longest.get(kind, 0), _decimals(number.get("published")))
    return [_compare(report["notebook"], number, longest[_kind(number)]) for number in numbers]


def _kind(number: dict[str, Any]) -> tuple[str, ...]:
    parts = number["key"].split(".")
    return (*parts[:2], parts[-1], str(number.get("unit")), type(number.get("published")).__name__)


def _compare(notebook: str, number: dict[str, Any], longest: int) -> Comparison:
    value, published = number.get("value"), number.get("published")
    decimals = longest if isinstance(published, float) else _decimals(published)
    ours, theirs = _decimal(value), _decimal(published)
    difference = ours - theirs if ours is not None and theirs is not None else None
    verdict: Verdict = "no comparison"
    if number.get("data") == "simulated":
        verdict, difference = "simulated", None
    elif number.get("comparable") is False:
        difference = None
    elif difference is not None:
        # half a unit of the last printed decimal, with room for the noise of binary floats
        verdict = (
            "agrees" if abs(difference) <= Decimal("0.5000001").scaleb(-decimals) else "differs"
        )
    shown = decimals + 2 if published is not None else 4
    return Comparison(
        notebook=notebook,
        key=number["key"],
        ours=_shown(value, shown),
        published="" if published is None else _shown(published, decimals),
        difference="" if difference is None else _signed(difference, shown),
        verdict=verdict,
        decimals=decimals,
        unit=number.get("unit") or "",
        source=number.get("source") or "",
        data=str(number.get("data", "")),
        order=tuple(
            None if entry is None else float(entry) for entry in (ours, theirs, difference)
        ),  # type: ignore[arg-type]
    )


def _decimal(value: Any) -> Decimal | None:
    """Return a number exactly as it is written, None for what is none (a list, a truth value, "< .001")."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = Decimal(str(value).strip().replace("−", "-"))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _decimals(published: Any) -> int:
    number = _decimal(published)
    if number is None or isinstance(published, int):
        return 0
    if isinstance(published, float):
        number = number.normalize()
    return max(0, -int(number.as_tuple().exponent))


def _shown(value: Any, decimals: int) -> str:
    number = _decimal(value)
    if isinstance(value, str) or number is None:
        return "–" if value is None else _listed(value)
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f").replace("-", "−")
    if number and abs(number) < Decimal(1).scaleb(-decimals):
        return f"{value:.2g}".replace("-", "−")
    return f"{number:.{decimals}f}".replace("-", "−")


def _listed(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_shown(entry, 4) for entry in value)
    return str(value)


def _signed(difference: Decimal, decimals: int) -> str:
    text = f"{difference:+.{decimals}f}"
    return text.lstrip("+-") if not float(text) else text.replace("-", "−")
