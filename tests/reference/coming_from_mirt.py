"""Write mirt's rows of docs/coming_from.md into coming_from.json, from irt/ and irt/more/.

python tests/reference/coming_from_mirt.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent


def table(name: str, model: str) -> pd.DataFrame:
    """Return a table's rows of the tight fit to LSAT6."""
    rows = pd.read_csv(HERE / "irt" / f"{name}.csv", low_memory=False)
    fit = rows["fit"] == "tight_TOL1e-6"
    return rows[fit & (rows["dataset"] == "LSAT6") & (rows["model"] == model)]


def more(name: str) -> pd.DataFrame:
    """Return a table of the ratings of Lalor et al. (2018)."""
    return pd.read_csv(HERE / "irt" / "more" / f"{name}.csv")


if __name__ == "__main__":
    fits = more("polytomous_fits").set_index("model")
    reliability = more("polytomous_reliability").set_index("model")
    graded, gpcm = (f"lalor2018_first25_{name}" for name in ("graded", "gpcm"))
    fit, items, information = (table(name, "2PL") for name in ("fits", "items", "test_information"))
    scores, persons = table("theta_first20", "2PL"), table("personfit_first20", "2PL")
    rasch = table("items", "Rasch")
    ratings = more(f"items_{graded}")
    values = {
        "logLik(m)": fit["logLik"],
        "extract.mirt(m, c('AIC', 'BIC', 'SABIC'))": fit[["AIC", "BIC", "SABIC"]],
        "coef(m, IRTpars = TRUE, simplify = TRUE)$items[, c('a', 'b')]": items[["a", "b"]],
        "coef(m, simplify = TRUE)$items[, 'd']": items["intercept_d"],
        "coef(m, printSE = TRUE)": items[["se_a", "se_d"]],
        "coef(mirt(x, 1, 'Rasch'), simplify = TRUE)$items[, 'd']": rasch["intercept_d"],
        "coef(mirt(x, 1, 'Rasch'), simplify = TRUE)$cov": table("fits", "Rasch")["latent_var"],
        "fscores(m)[1:20]": scores["EAP"],
        "fscores(m, full.scores.SE = TRUE)[1:20, 2]": scores["SE_EAP"],
        "fscores(m, method = 'MAP')[1:20]": scores["MAP"],
        "fscores(m, method = 'WLE')[1:20]": scores["WLE"],
        "itemfit(m, mincell = 1)$S_X2": items["S_X2"],
        "M2(m)[c('M2', 'df', 'p')]": table("m2", "2PL")[["M2", "df", "p"]],
        "residuals(m, type = 'LD', df.p = TRUE)": table("ld_x2", "2PL")["LD_X2"],
        "personfit(m)[1:20, c('outfit', 'infit', 'Zh')]": persons[["outfit", "infit", "Zh"]],
        "testinfo(m, -3:3)": information["test_information"],
        "marginal_rxx(m)": information["marginal_rxx"].iloc[:1],
        "logLik(mirt(r, 1, 'graded'))": fits.loc[[graded], "logLik"],
        "logLik(mirt(r, 1, 'gpcm'))": fits.loc[[gpcm], "logLik"],
        "coef(mirt(r, 1, 'graded'), IRTpars = TRUE, simplify = TRUE)$items": ratings[
            ["a", "b1", "b2", "b3", "b4"]
        ],
        "testinfo(mirt(r, 1, 'graded'), seq(-4, 4, 0.5))": more(
            "test_information_lalor2018_first25"
        )["graded"],
        "empirical_rxx(fscores(mirt(r, 1, 'graded'), full.scores.SE = TRUE))": reliability.loc[
            [graded], "empirical_rxx"
        ],
    }
    place = HERE / "coming_from.json"
    stored = json.loads(place.read_text())
    stored["mirt"] = {
        call: pd.DataFrame(value).to_numpy(float).ravel().tolist() for call, value in values.items()
    }
    place.write_text(json.dumps(stored, indent=1) + "\n")
