"""Write classical.json: R's mantelhaen.test, psych, polycor and lavaan on data of this project.

It needs R with psych, polycor, lavaan and GPArotation (Debian: r-cran-psych r-cran-polycor
r-cran-lavaan r-cran-gparotation) and takes about a minute: python classical.py
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np

from psychlm import corpora

TARGET = Path(__file__).resolve().parent / "classical.json"
R = r"""
suppressMessages({library(psych); library(polycor); library(lavaan); library(jsonlite)})
arguments <- commandArgs(trailingOnly = TRUE)
ratings <- read.csv(arguments[1])
graded <- read.csv(arguments[2])
group <- graded$group
graded$group <- NULL
improper <- read.csv(arguments[3])
score <- rowSums(graded)
result <- list(versions = as.list(c(R = as.character(getRversion()),
  sapply(c("psych", "polycor", "lavaan"), function(name) as.character(packageVersion(name))))))
# The generalised Mantel-Haenszel test of three groups, item by item, among persons of equal score.
result$mantelhaen <- sapply(graded, function(x) {
  table <- table(x, group, score)
  table <- table[, , apply(table, 3, sum) > 1]
  unname(mantelhaen.test(table)$statistic)
})
# Polychoric correlations in two steps.
ordered <- as.data.frame(lapply(ratings[1:6], ordered))
result$polychoric_psych <- unname(polychoric(ratings[1:6], correct = 0)$rho)
result$polychoric_lavaan <- unname(unclass(lavCor(ordered, ordered = names(ordered))))
result$polychor <- polychor(ordered[[1]], ordered[[2]])
set.seed(1)
parallel <- fa.parallel(ratings, cor = "poly", fa = "pc", sim = FALSE, n.iter = 20, plot = FALSE)
result$parallel_eigenvalues <- parallel$pc.values
result$parallel_n <- parallel$ncomp
found <- omega(ratings, nfactors = 3, plot = FALSE)
result$omega <- list(hierarchical = found$omega_h, total = found$omega.tot, alpha = found$alpha)
found_improper <- omega(improper, nfactors = 3, flip = FALSE, plot = FALSE)
result$omega_improper <- list(hierarchical = found_improper$omega_h,
  total = found_improper$omega.tot)
result$omega_general <- found$schmid$sl[, "g"]
result$omega_general_items <- rownames(found$schmid$sl)
turned <- ratings
turned[c(2, 5)] <- 6 - turned[c(2, 5)]
keys <- suppressWarnings(alpha(turned, check.keys = TRUE))$keys
result$reversed <- which(unlist(keys) < 0)
write_json(result, arguments[4], digits = 10, auto_unbox = TRUE, pretty = TRUE)
"""

if __name__ == "__main__":
    ratings = corpora.lalor2018_ratings().iloc[:, :12]
    graded = corpora.lalor2018().graded.iloc[:, :12]
    improper = corpora.lalor2018().graded.iloc[:, 12:24]  # whose best uniqueness is below 0
    graded = graded.assign(group=np.arange(len(graded)) % 3)
    with tempfile.TemporaryDirectory() as folder:
        tables = {"ratings": ratings, "graded": graded, "improper": improper}
        for name, table in tables.items():
            table.to_csv(Path(folder) / f"{name}.csv", index=False)
        script = Path(folder) / "classical.R"
        script.write_text(R)
        files = [str(Path(folder) / f"{name}.csv") for name in tables]
        subprocess.run(["Rscript", str(script), *files, str(TARGET)], check=True)
