"""Item response theory: 1PL to 4PL, Rasch, graded and partial-credit models, in one or more groups.

``fit`` estimates items by marginal maximum likelihood, ``IRTFit.score`` persons. A module is
imported when a name of it is first used, and torch only by what needs it.
"""

# ruff: noqa: F401  (__getattr__ imports what this file says to type checkers)
from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psychlm.irt._fit import fit
    from psychlm.irt._m2 import M2Fit, m2
    from psychlm.irt._short_form import ShortForm, short_form
    from psychlm.irt.adaptive import AdaptiveTest, CutScore, adaptive_test, exposure_shares
    from psychlm.irt.broken_items import flag_items
    from psychlm.irt.dif import (
        ExplanatoryDIF,
        LikelihoodRatioDIF,
        MantelHaenszel,
        dif_explanatory,
        dif_likelihood_ratio,
        dif_logistic,
        mantel_haenszel,
    )
    from psychlm.irt.dimensionality import (
        eigenvalues,
        likelihood_ratio,
        parallel_analysis,
        rotate,
        tetrachoric,
        two_factor,
    )
    from psychlm.irt.item_fit import infit_outfit, ld_x2, person_fit, q3, s_x2
    from psychlm.irt.linking import link, linking_constants
    from psychlm.irt.model_tables import ModelTables
    from psychlm.irt.priors import Beta, LogNormal, Normal
    from psychlm.irt.result import IRTFit, IRTWarning
    from psychlm.irt.scoring import score
    from psychlm.irt.selection import (
        InformationRange,
        Selection,
        assemble_form,
        information_range,
        select_items,
    )

_MODULES = {
    name.name: str(statement.module)
    for statement in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(__name__)
    for name in statement.names
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a name, or a module, when it is first used."""
    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
