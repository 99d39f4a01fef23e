"""The rows of docs/coming_from.md, and the numbers that each program gives for them.

As a script this writes reference/coming_from.json, numbers of programs that no test runs; it needs
R with the program, or minicons: ``python tests/helpers/rows_of_programs.py lme4 minicons``."""

import json
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "coming_from.md"
STORED = ROOT / "tests" / "reference" / "coming_from.json"


@cache
def sections() -> dict[str, dict[str, object]]:
    """Return the blocks of Python and R and the rows (what, theirs, ours) of each program."""
    found = {}
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]:
        rows = re.findall(r"^\| (?!What|---)(.+?) \| `(.+?)` \| `(.+?)` \|$", part, flags=re.M)
        blocks = {
            language: "".join(re.findall(rf"^```{language}\n(.*?)^```$", part, flags=re.M | re.S))
            for language in ("python", "r")
        }
        unescaped = [tuple(cell.replace(r"\|", "|") for cell in row) for row in rows]
        found[part.partition("\n")[0].strip()] = blocks | {"rows": unescaped}
    return found


@cache
def namespace(name: str) -> dict[str, object]:
    """Run a section's Python blocks once; return their names."""
    names: dict[str, object] = {"np": np, "pd": pd}
    exec(compile(sections()[name]["python"], f"{PAGE.name}, {name}", "exec"), names)
    return names


def numbers(value: object) -> np.ndarray:
    """Return the numbers of a result in the order of its rows, NaN left out; a fit gives its
    log-likelihood."""
    value = getattr(value, "loglik", value)
    if isinstance(value, pd.DataFrame):
        value = value.select_dtypes("number")
    found = np.asarray(value, dtype=np.float64).ravel()
    return found[~np.isnan(found)]


NUMBERS_IN_R = """
function(v) {
  if (inherits(v, c("gam", "merMod", "lm"))) v <- stats::logLik(v)
  by_row <- function(x) if (is.matrix(x)) t(x) else x
  if (is.list(v) && !is.data.frame(v)) v <- unlist(lapply(v, by_row))
  if (is.data.frame(v)) v <- as.matrix(v[vapply(v, is.numeric, TRUE)])
  v <- as.numeric(by_row(v))
  v[!is.na(v)]
}
"""


@cache
def r_environment(name: str):
    """Run a section's R blocks once on the readings ``d``; return R's environment of them."""
    from psychlm.reading_times import mgcv

    with mgcv.in_r() as robjects:
        place = robjects.r("grDevices::pdf(NULL); new.env()")  # plots are drawn nowhere
        d = namespace(name)["d"]
        place["d"] = mgcv.to_r(d, [column for column in d.columns if column != "word"])
        robjects.r["eval"](robjects.r["parse"](text=sections()[name]["r"]), place)
    return place


def of_r(name: str, code: str) -> np.ndarray:
    """Return the numbers of a call in R."""
    from psychlm.reading_times import mgcv

    place = r_environment(name)
    with mgcv.in_r() as robjects:
        value = robjects.r["eval"](robjects.r["parse"](text=code), place)
        return np.array(robjects.r(NUMBERS_IN_R)(value), dtype=np.float64)


def of_minicons(code: str) -> np.ndarray:
    """Return the numbers of a call in minicons, after the page's block of it."""
    names: dict[str, object] = {}
    block = re.search(r"^```py\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    exec(block[1], names)
    return numbers(eval(code, names))


if __name__ == "__main__":
    stored = json.loads(STORED.read_text())
    for program in sys.argv[1:]:
        for _, theirs, _ in sections()[program]["rows"]:
            given = of_minicons(theirs) if program == "minicons" else of_r(program, theirs)
            stored.setdefault(program, {})[theirs] = given.tolist()
    STORED.write_text(json.dumps(stored, indent=1) + "\n")
