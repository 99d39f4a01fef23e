from . import (
    adaptive as adaptive,
    broken_items as broken_items,
    curves as curves,
    dif as dif,
    dimensionality as dimensionality,
    explanatory as explanatory,
    item_fit as item_fit,
    linking as linking,
    model_tables as model_tables,
    multidimensional as multidimensional,
    priors as priors,
    raters as raters,
    response_functions as response_functions,
    result as result,
    scoring as scoring,
    selection as selection,
    specification as specification,
    standard_errors as standard_errors,
)
from ._fit import fit as fit
from ._m2 import M2Fit as M2Fit, m2 as m2
from ._repeats import correlation_of_repeats as correlation_of_repeats
from ._short_form import ShortForm as ShortForm, short_form as short_form
from .adaptive import (
    AdaptiveTest as AdaptiveTest,
    CutScore as CutScore,
    adaptive_test as adaptive_test,
    exposure_shares as exposure_shares,
)
from .broken_items import flag_items as flag_items
from .dif import (
    LikelihoodRatioDIF as LikelihoodRatioDIF,
    MantelHaenszel as MantelHaenszel,
    dif_likelihood_ratio as dif_likelihood_ratio,
    dif_logistic as dif_logistic,
    mantel_haenszel as mantel_haenszel,
)
from .dimensionality import (
    eigenvalues as eigenvalues,
    likelihood_ratio as likelihood_ratio,
    parallel_analysis as parallel_analysis,
    polychoric as polychoric,
    rotate as rotate,
    tetrachoric as tetrachoric,
    two_factor as two_factor,
)
from .explanatory import (
    ExplanatoryDIF as ExplanatoryDIF,
    dif_explanatory as dif_explanatory,
)
from .item_fit import (
    ability_x2 as ability_x2,
    infit_outfit as infit_outfit,
    ld_x2 as ld_x2,
    person_fit as person_fit,
    q3 as q3,
    q3_cut as q3_cut,
    s_x2 as s_x2,
    sum_score_table as sum_score_table,
)
from .linking import link as link, linking_constants as linking_constants, rescale as rescale
from .model_tables import ModelTables as ModelTables
from .multidimensional import (
    MultidimensionalFit as MultidimensionalFit,
    fit_dimensions as fit_dimensions,
)
from .priors import Beta as Beta, LogNormal as LogNormal, Normal as Normal
from .raters import RaterFit as RaterFit, fit_raters as fit_raters
from .result import IRTFit as IRTFit, IRTWarning as IRTWarning
from .scoring import score as score
from .selection import (
    InformationRange as InformationRange,
    Selection as Selection,
    assemble_form as assemble_form,
    information_range as information_range,
    select_items as select_items,
)
