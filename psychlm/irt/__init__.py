"""Item response theory: 1PL to 4PL, Rasch, graded and partial-credit models, in one or more groups.

``fit`` estimates items by marginal maximum likelihood, ``IRTFit.score`` persons. A module is
imported when a name of it is first used, and torch only by what needs it.
"""

# ruff: noqa: F401  (what type checkers read below is what __getattr__ imports)
from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
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
    from psychlm.irt.dimensionality import eigenvalues, likelihood_ratio, tetrachoric
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

_NAMES = {
    "_fit": "fit",
    "_m2": "M2Fit m2",
    "_short_form": "ShortForm short_form",
    "adaptive": "AdaptiveTest CutScore adaptive_test exposure_shares",
    "broken_items": "flag_items",
    "dif": "ExplanatoryDIF LikelihoodRatioDIF MantelHaenszel dif_explanatory dif_likelihood_ratio "
    "dif_logistic mantel_haenszel",
    "dimensionality": "eigenvalues likelihood_ratio tetrachoric",
    "item_fit": "infit_outfit ld_x2 person_fit q3 s_x2",
    "linking": "link linking_constants",
    "model_tables": "ModelTables",
    "priors": "Beta LogNormal Normal",
    "result": "IRTFit IRTWarning",
    "scoring": "score",
    "selection": "InformationRange Selection assemble_form information_range select_items",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a name, or a module, when it is first used."""
    if name in _MODULES:
        value = getattr(import_module(f"psychlm.irt.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and find_spec(f"psychlm.irt.{name}"):
        return import_module(f"psychlm.irt.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
