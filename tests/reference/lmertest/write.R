# What lmerTest, pbkrtest, emmeans, lme4 and mgcv give for sleepstudy and data_readings.csv: as CSV, one row a
# number. Run from the root of the repository: Rscript tests/reference/lmertest/write.R
suppressMessages({library(lmerTest); library(emmeans); library(mgcv); library(splines); library(MASS)})
emm_options(lmerTest.limit = 1e5, pbkrtest.limit = 1e5)
folder <- "tests/reference/lmertest/"
readings <- read.csv(paste0(folder, "data_readings.csv"), stringsAsFactors = TRUE)
sleep <- read.csv("tests/reference/lme4/data_sleepstudy.csv")
sleep$Subject <- factor(sleep$Subject)
data_of <- function(formula) if (grepl("Reaction", formula)) sleep else readings
control <- lmerControl(optimizer = "bobyqa", optCtrl = list(rhoend = 1e-10, maxfun = 1e5))
fit_lmer <- function(formula, reml = TRUE, contrasts = NULL)
  eval(bquote(lmer(.(as.formula(formula)), data_of(formula), REML = reml, control = control,
                   contrasts = contrasts)))
long <- function(model, test, table) {
  table <- as.data.frame(table)
  names <- colnames(table)[vapply(table, is.numeric, TRUE)]
  do.call(rbind, lapply(names, function(name) data.frame(
    model = model, test = test, row = seq_len(nrow(table)), name = rownames(table), column = name,
    value = table[[name]])))
}
number <- function(x) trimws(formatC(x, digits = 11, format = "g"))
write_rows <- function(rows, file) {
  rows$value <- number(rows$value)
  write.csv(rows, paste0(folder, file), row.names = FALSE, quote = TRUE)
}

# Degrees of freedom: coefficients and type III tests, Satterthwaite's and Kenward and Roger's.
models <- c(
  "Reaction ~ Days + (1 | Subject)",
  "Reaction ~ Days + (1 + Days | Subject)",
  "Reaction ~ Days + (1 + Days || Subject)",
  "Reaction ~ poly(Days, 2) + (1 | Subject)",
  "log(Reaction) ~ Days + (1 + Days | Subject)",
  "gaze_ms ~ cond + (1 | subject)",
  "gaze_ms ~ cond * task + bits + (1 | subject) + (1 | item)",
  "gaze_ms ~ bits * task + (1 + bits | subject) + (1 | item)",
  "gaze_ms ~ old * cond + (1 | subject) + (1 + old | item)",
  "gaze_ms ~ bits + task + (1 | school/subject)",
  "gaze_ms ~ scale(bits) * old * task + (1 | subject) + (1 | item)",
  "log(gaze_ms) ~ bits * cond + (1 | subject) + (1 | item)",
  "gaze_ms ~ ns(position, df = 3) + cond + (1 | subject)",
  "gaze_ms ~ task:cond + bits + (1 | subject) + (1 | item)",
  "gaze_ms ~ cond + (0 + old | item) + (1 | subject)",
  "gaze_ms ~ old + bits + (1 + bits || subject) + (1 | item)")
rows <- NULL
for (formula in models) {
  fit <- fit_lmer(formula)
  rows <- rbind(rows, long(formula, "coefficients", coef(summary(fit))),
                long(formula, "anova", anova(fit)),
                long(formula, "coefficients, Kenward-Roger", coef(summary(fit, ddf = "Kenward-Roger"))),
                long(formula, "anova, Kenward-Roger", anova(fit, ddf = "Kenward-Roger")),
                long(formula, "coefficients, ML", coef(summary(fit_lmer(formula, FALSE)))))
}
write_rows(rows, "degrees_of_freedom.csv")

# Contrasts: names and estimates.
coded <- function(name, scheme) setNames(list(scheme), name)
schemes <- list(sum = "contr.sum", helmert = "contr.helmert", treatment = "contr.treatment", poly = "contr.poly",
                sdif = "contr.sdif")
rows <- NULL
for (scheme in names(schemes)) for (formula in c("gaze_ms ~ cond * bits + (1 | subject)",
                                                 "gaze_ms ~ cond * task + (1 | subject) + (1 | item)")) {
  fit <- fit_lmer(formula, contrasts = coded("cond", schemes[[scheme]]))
  rows <- rbind(rows, long(formula, scheme, coef(summary(fit))), long(formula, paste("anova,", scheme), anova(fit)))
}
write_rows(rows, "contrasts.csv")

# Likelihood-ratio tests of pairs: other fixed effects (by ML), other random effects (by REML).
pairs <- list(
  c("Reaction ~ 1 + (1 | Subject)", "Reaction ~ Days + (1 | Subject)"),
  c("Reaction ~ Days + (1 | Subject)", "Reaction ~ Days + (1 + Days | Subject)"),
  c("Reaction ~ Days + (1 | Subject)", "Reaction ~ poly(Days, 2) + (1 | Subject)"),
  c("gaze_ms ~ cond + (1 | subject)", "gaze_ms ~ cond * task + (1 | subject)"),
  c("gaze_ms ~ cond + (1 | subject)", "gaze_ms ~ cond + (1 | subject) + (1 | item)"),
  c("gaze_ms ~ bits + (1 | subject) + (1 | item)", "gaze_ms ~ bits + (1 + bits | subject) + (1 | item)"),
  c("gaze_ms ~ bits + (1 | subject)", "gaze_ms ~ bits + old * task + (1 | subject)"),
  c("log(gaze_ms) ~ bits + (1 | subject)", "log(gaze_ms) ~ bits * cond + (1 | subject)"))
rows <- NULL
for (pair in pairs) {
  fits <- lapply(pair, fit_lmer)
  same <- identical(names(fixef(fits[[1]])), names(fixef(fits[[2]])))
  found <- suppressMessages(anova(fits[[1]], fits[[2]], refit = !same))
  found <- found[, c("npar", "AIC", "BIC", "logLik", "deviance", "Chisq", "Df", "Pr(>Chisq)")]
  found <- as.data.frame(found)
  rownames(found) <- NULL
  if (same) found$deviance <- -2 * found$logLik
  rows <- rbind(rows, long(paste(pair, collapse = " ; "), "anova", found))
}
write_rows(rows, "anova.csv")

# Marginal means and differences.
means <- list(
  list("gaze_ms ~ cond + (1 | subject)", "cond", NULL),
  list("gaze_ms ~ cond * task + bits + (1 | subject) + (1 | item)", "cond", NULL),
  list("gaze_ms ~ cond * task + bits + (1 | subject) + (1 | item)", "cond", "task"),
  list("gaze_ms ~ cond * task + bits + (1 | subject) + (1 | item)", c("cond", "task"), NULL),
  list("gaze_ms ~ old * cond + (1 | subject) + (1 + old | item)", "cond", NULL),
  list("gaze_ms ~ old * cond + (1 | subject) + (1 + old | item)", "old", "cond"),
  list("gaze_ms ~ scale(bits) * old * task + (1 | subject) + (1 | item)", "task", NULL),
  list("gaze_ms ~ ns(position, df = 3) + cond + (1 | subject)", "cond", NULL),
  list("log(gaze_ms) ~ bits * cond + (1 | subject) + (1 | item)", "cond", NULL),
  list("gaze_ms ~ poly(position, 2) * task + cond + (1 + bits | subject)", "task", NULL))
rows <- NULL
for (asked in means) for (method in c("satterthwaite", "kenward-roger")) {
  fit <- fit_lmer(asked[[1]])
  found <- emmeans(fit, asked[[2]], by = asked[[3]], lmer.df = method)
  key <- paste(c(asked[[1]], paste(asked[[2]], collapse = "+"), asked[[3]], method), collapse = " ; ")
  differences <- function(adjust) {
    each <- pairs(found, adjust = adjust)
    cbind(as.data.frame(summary(each, infer = TRUE, adjust = adjust)))
  }
  plain <- function(x) { x <- as.data.frame(x); rownames(x) <- NULL; x }
  rows <- rbind(rows, long(key, "means", plain(summary(found))), long(key, "tukey", differences("tukey")),
                long(key, "holm", differences("holm")))
  if (grepl("^log", asked[[1]])) {
    rows <- rbind(rows, long(key, "response", plain(summary(found, type = "response"))),
      long(key, "bias", plain(summary(found, type = "response", bias.adjust = TRUE, sigma = sigma(fit)))),
      long(key, "ratios", plain(summary(pairs(found), type = "response", infer = TRUE))))
  }
}
write_rows(rows, "means.csv")

# Additive models: anova of pairs, tests of terms, difference smooths.
additive <- list(
  c("gaze_ms ~ bits", "gaze_ms ~ bits + cond"),
  c("gaze_ms ~ s(bits)", "gaze_ms ~ s(bits) + s(position)"),
  c("gaze_ms ~ s(position) + s(subject, bs = 're')", "gaze_ms ~ s(position) + cond + s(subject, bs = 're')"),
  c("log(gaze_ms) ~ cond + s(bits, bs = 'cr')", "log(gaze_ms) ~ cond * task + s(bits, bs = 'cr')"),
  c("gaze_ms ~ s(position) + s(bits)", "gaze_ms ~ te(position, bits, k = 4)"),
  c("gaze_ms ~ task + s(position, k = 6)", "gaze_ms ~ task + s(position, by = task, k = 6)"),
  c("gaze_ms ~ cond + s(position)", "gaze_ms ~ cond + s(position) + s(position, by = bits, k = 5)"),
  c("gaze_ms ~ s(bits) + s(subject, bs = 're')",
    "gaze_ms ~ s(bits) + s(subject, bs = 're') + s(subject, bits, bs = 're') + s(item, bs = 're')"),
  c("gaze_ms ~ s(bits) + s(item, bs = 're')",
    "gaze_ms ~ s(bits) + s(item, bs = 're') + s(subject, task, bs = 're')"),
  c("gaze_ms ~ s(position, k = 5) + s(bits, k = 5)",
    "gaze_ms ~ s(position, k = 5) + s(bits, k = 5) + ti(position, bits, k = 4)"))
rows <- NULL
tight <- gam.control(newton = list(conv.tol = 1e-9))
for (pair in additive) for (method in c("REML", "ML")) {
  fits <- lapply(pair, function(f) gam(as.formula(f), data = readings, method = method, control = tight))
  found <- as.data.frame(anova(fits[[1]], fits[[2]], test = "Chisq"))
  rownames(found) <- NULL
  rows <- rbind(rows, long(paste(pair, collapse = " ; "), paste0("anova", if (method == "ML") ", ML"), found))
  if (method == "ML") next
  found <- summary(fits[[2]])
  if (!is.null(found$pTerms.table)) rows <- rbind(rows, long(pair[2], "terms", found$pTerms.table))
}
fit <- gam(gaze_ms ~ task + s(position, by = task, k = 6) + s(subject, bs = "re"), data = readings, method = "REML",
           control = tight)
grid <- expand.grid(position = c(1, 6, 12, 18, 24), task = levels(readings$task), subject = "s00")
x <- predict(fit, grid, type = "lpmatrix", exclude = "s(subject)")
difference <- x[1:5, ] - x[6:10, ]
rows <- rbind(rows, long("gaze_ms ~ task + s(position, by = task, k = 6) + s(subject, bs = 're')", "difference",
  data.frame(estimate = difference %*% coef(fit), SE = sqrt(rowSums(difference %*% vcov(fit) * difference)))))
write_rows(rows, "additive.csv")
writeLines(c(R.version.string, vapply(c("lme4", "lmerTest", "pbkrtest", "emmeans", "mgcv"), function(p)
  paste(p, packageVersion(p)), "")), paste0(folder, "versions.txt"))
