# Writes erm.csv: thresholds of partial credit and rating scale models by eRm, centred.
# Rscript write_erm.R DATA.csv, with the ratings of test_more_models.rated as DATA.csv
library(eRm)
x <- read.csv(commandArgs(TRUE)[1], row.names = 1)
rows <- lapply(c("PCM", "RSM"), function(model) {
  steps <- thresholds(match.fun(model)(x))$threshtable[[1]][, -1]
  steps <- steps - mean(steps)
  data.frame(model, item = names(x), b1 = steps[, 1], b2 = steps[, 2], b3 = steps[, 3])
})
write.csv(do.call(rbind, rows), "erm.csv", row.names = FALSE)
