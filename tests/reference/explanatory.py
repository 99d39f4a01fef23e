"""Write explanatory_*.csv and data_VerbAgg.csv: explanatory item response models by lme4's glmer.

It needs R with lme4 (Debian: r-cran-lme4) and takes about a minute: python explanatory.py
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from psychlm import corpora

TARGET = Path(__file__).resolve().parent / "irt" / "more"
R = r"""
library(lme4)
arguments <- commandArgs(trailingOnly = TRUE)
control <- glmerControl(optimizer = "bobyqa", tolPwrss = 1e-10,
                        optCtrl = list(maxfun = 2e5, rhobeg = 0.1, rhoend = 1e-9))
rows <- NULL
record <- function(model, formula, data) {
  f <- glmer(formula, data, binomial, control = control)
  sds <- as.data.frame(VarCorr(f))
  add <- function(kind, name, value) rows <<- rbind(rows,
    data.frame(model = model, kind = kind, name = name, value = format(value, digits = 10)))
  add("logLik", "", as.numeric(logLik(f)))
  add("fixed", names(fixef(f)), fixef(f))
  add("se", names(fixef(f)), sqrt(diag(as.matrix(vcov(f)))))
  add("sd", paste(sub("[.][0-9]+$", "", sds$grp), sds$var1), sds$sdcor)
  for (grouping in c("item", "by")) if (grouping %in% names(ranef(f))) {
    modes <- ranef(f)[[grouping]]
    for (column in names(modes)) add(paste("mode", grouping, column), rownames(modes),
                                     modes[[column]])
  }
}
data(VerbAgg)
long <- transform(VerbAgg, right = as.numeric(r2 == "Y"), male = as.numeric(Gender == "M"))
long$female <- 1 - long$male
long$by <- paste(long$btype, long$mode)
long$person <- long$id
record("VerbAgg empty", right ~ 1 + (1 | person) + (1 | item), long)
record("VerbAgg items", right ~ btype + situ + mode + (1 | person) + (1 | item), long)
record("VerbAgg DIF", right ~ male + (0 + female | person) + (0 + male | person) + (1 | item) +
         (0 + male | by) + (0 + male | item), long)
panel <- read.csv(arguments[1])
record("panel label", right ~ neutral + contradiction + (1 | person) + (1 | item), panel)
write.csv(rows, file.path(arguments[2], "explanatory_glmer.csv"), row.names = FALSE, quote = FALSE)
wide <- reshape(long[c("id", "Gender", "item", "right")], direction = "wide", timevar = "item",
                idvar = c("id", "Gender"))
names(wide) <- sub("right.", "", names(wide), fixed = TRUE)
write.csv(wide, file.path(arguments[2], "data_VerbAgg.csv"), row.names = FALSE, quote = FALSE)
items <- unique(long[c("item", "btype", "situ", "mode", "by")])
write.csv(items, file.path(arguments[2], "explanatory_items.csv"), row.names = FALSE, quote = FALSE)
"""

if __name__ == "__main__":
    study = corpora.laverghetta2021()
    answer = study.items.set_index("item_id")["answer"]
    right = study.panel.rename_axis(index="person", columns="item").stack().rename("right")
    panel = right.reset_index()
    for place, name in ((1, "neutral"), (2, "contradiction")):
        panel[name] = (panel["item"].map(answer) == place).astype(float)
    with tempfile.TemporaryDirectory() as folder:
        script, table = Path(folder, "explanatory.R"), Path(folder, "panel.csv")
        script.write_text(R)
        panel.to_csv(table, index=False)
        subprocess.run(["Rscript", "--vanilla", script, table, TARGET], check=True)
