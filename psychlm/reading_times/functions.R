# What mgcv.py and lme4.py ask of R.

has_package <- function(name) nzchar(system.file(package = name))

to_factor <- function(codes, levels, ordered)
  structure(as.integer(codes), levels = levels, class = c(if (ordered) "ordered", "factor"))

with_contrasts <- function(factor, values, names)
  structure(factor, contrasts = matrix(values, nlevels(factor),
                                       dimnames = list(levels(factor), names)))

# Evaluate with treatment contrasts of all factors, ordered ones too. (predict.gam forgets contrasts
# of a factor's own where its main effect is not in the model.)
with_treatment <- function(value) {
  before <- options(contrasts = rep("contr.treatment", 2))
  on.exit(options(before))
  value
}

variables_of <- function(formula) all.vars(stats::as.formula(formula))

variables_of_arguments <- function(text) all.vars(str2lang(paste0("list(", text, ")")))

# Call a function of a package that fits. The names in the call are the package's functions, the
# model and the data.
fit_model <- function(package, call, formula, data) {
  library(splines)  # ns(), also for predictions
  place <- list2env(list(model = stats::as.formula(formula, env = globalenv()), data = data),
                    parent = asNamespace(package))
  messages <- character()
  collect <- function(w) {
    messages <<- c(messages, conditionMessage(w))
    invokeRestart("muffleWarning")
  }
  note <- function(m) invokeRestart("muffleMessage")  # a singular fit is in the result
  evaluate <- function() with_treatment(eval(parse(text = call), place))
  fit <- tryCatch(withCallingHandlers(evaluate(), warning = collect, message = note),
                  error = function(e) conditionMessage(e))
  list(fit = fit, warnings = unique(messages), refused = is.character(fit))
}

rows_of <- function(fit) as.integer(rownames(stats::model.frame(fit)))

# The variables of each random effect, preceded by its label, and those of all other terms.
gam_terms <- function(formula) {
  parts <- mgcv::interpret.gam(stats::as.formula(formula))
  random <- vapply(parts$smooth.spec, function(s) inherits(s, "re.smooth.spec"), TRUE)
  others <- lapply(parts$smooth.spec[!random], function(s) c(s$term, all.vars(str2lang(s$by))))
  list(random = lapply(parts$smooth.spec[random], function(s) c(s$label, s$term)),
       fixed = as.character(c(all.vars(parts$pf)[-1], unlist(others))))
}

mgcv_result <- function(fit) {
  linear <- seq_len(fit$nsdf)
  random <- vapply(fit$smooth, function(s) inherits(s, "random.effect"), TRUE)
  # Deviations of random effects: penalties as mgcv scales them, undone.
  deviation <- function(s) sqrt(fit$sig2 * s$S.scale[1] / fit$sp[s$first.sp])
  w <- sqrt(fit$prior.weights)
  errors <- w * (fit$y - fit$fitted.values)
  variables <- function(terms) unique(unlist(lapply(terms, function(t) all.vars(str2lang(t)))))
  list(loglik = as.numeric(stats::logLik(fit)), edf = sum(fit$edf), scale = fit$sig2,
       names = names(stats::coef(fit))[linear], estimate = unname(stats::coef(fit)[linear]),
       covariance = unname(fit$Vp[linear, linear]),
       dof = if (fit$scale.estimated) fit$df.residual else Inf,
       labels = vapply(fit$smooth, function(s) s$label, ""), random = random,
       smooth_edf = vapply(fit$smooth, function(s) sum(fit$edf[s$first.para:s$last.para]), 0),
       components = vapply(fit$smooth[random], deviation, 0),
       r_squared = 1 - stats::var(errors) * (length(w) - 1) /
         (stats::var(w * (fit$y - stats::weighted.mean(fit$y, w))) * fit$df.residual),
       deviance_explained = 1 - fit$deviance / fit$null.deviance, criterion = fit$gcv.ubre[[1]],
       aic = fit$aic, residuals = as.numeric(stats::residuals(fit)), linear = attr(fit$pterms, "term.labels"),
       variables = c(lapply(attr(fit$pterms, "term.labels"), variables),
                     lapply(fit$smooth[!random], function(s) variables(s$term))),
       by = vapply(fit$smooth[!random], function(s) s$by, ""),
       levels = vapply(fit$smooth[!random], function(s) paste0("", s$by.level), ""),
       link = fit$family$link[1], converged = isTRUE(fit$converged) || isTRUE(fit$mgcv.conv) ||
         identical(fit$outer.info$conv, "full convergence"))
}

mgcv_predict <- function(fit, data, exclude, se) {
  found <- with_treatment(stats::predict(fit, newdata = data, type = "response", exclude = exclude,
                                         se.fit = se, discrete = FALSE))
  if (se) c(found$fit, found$se.fit) else as.numeric(found)
}

mgcv_effect <- function(fit, data, label) {
  found <- with_treatment(stats::predict(fit, newdata = data, type = "terms", terms = label,
                                         se.fit = TRUE, discrete = FALSE))
  c(found$fit, found$se.fit)
}

mgcv_tests <- function(fit) unname(summary(fit)$s.table)

# Levels of random effects, in the order of their coefficients; and their estimates and errors.
mgcv_random_effects <- function(fit) {
  random <- Filter(function(s) inherits(s, "random.effect"), fit$smooth)
  names <- lapply(random, function(s) {
    levels <- Filter(Negate(is.null), lapply(fit$model[s$term], levels))
    do.call(paste, c(expand.grid(levels), sep = "."))
  })
  places <- unlist(lapply(random, function(s) s$first.para:s$last.para))
  list(term = rep(vapply(random, function(s) s$label, ""), lengths(names)),
       level = as.character(unlist(names)),
       estimate = unname(stats::coef(fit)[places]), std_error = unname(sqrt(diag(fit$Vp)[places])))
}

# Columns that are nothing but labels of groups; lme4 itself makes labels of the others.
lme4_groups <- function(formula) {
  model <- stats::as.formula(formula)
  bars <- lme4::findbars(model)
  variables <- function(part) unlist(lapply(bars, function(bar) all.vars(bar[[part]])))
  setdiff(variables(3), c(all.vars(lme4::nobars(model)), variables(2)))
}

lme4_result <- function(fit, gaussian, data) {  # lmerTest looks for the data here
  effect <- function(names) ifelse(names == "(Intercept)", "1", as.character(names))
  # VarCorr numbers a factor's second bar, "subject.1", and writes "class.school".
  factors <- lme4::getME(fit, "flist")
  of_bar <- function(matrix, name)
    list(group = name, names = effect(rownames(matrix)), deviations = attr(matrix, "stddev"),
         correlations = unname(attr(matrix, "correlation")))
  variances <- lme4::VarCorr(fit)
  slopes <- stats::coef(summary(fit))
  dof <- rep(Inf, nrow(slopes))
  tested <- if (gaussian && nzchar(system.file(package = "lmerTest"))) {
    suppressPackageStartupMessages(library(lme4))  # lmerTest evaluates control=lmerControl() again
    with_treatment(lmerTest::as_lmerModLmerTest(fit))
  }
  if (!is.null(tested)) dof <- stats::coef(summary(tested))[, "df"]
  problems <- fit@optinfo$conv$lme4$messages
  loglik <- as.numeric(stats::logLik(fit))
  list(loglik = loglik, criterion = -loglik, aic = stats::AIC(fit), scale = stats::sigma(fit)^2,
       edf = nrow(slopes) + length(lme4::getME(fit, "theta")),
       names = rownames(slopes), estimate = unname(slopes[, 1]),
       dropped = as.character(names(attr(lme4::getME(fit, "X"), "col.dropped"))),
       covariance = unname(as.matrix(stats::vcov(fit))), dof = as.numeric(dof),
       bars = Map(of_bar, variances, names(factors)[attr(factors, "assign")]), singular = lme4::isSingular(fit),
       converged = identical(as.integer(fit@optinfo$conv$opt), 0L) &&
         length(setdiff(problems, grep("singular", problems, value = TRUE))) == 0,
       residuals = unname(stats::residuals(fit)), link = stats::family(fit)$link, tested = tested)
}

lme4_predict <- function(fit, data, random)
  as.numeric(with_treatment(stats::predict(fit, newdata = data, re.form = if (random) NULL else NA,
                                           type = "response", allow.new.levels = TRUE)))

lme4_profile <- function(fit, level) {
  found <- stats::confint(fit, level = level, method = "profile", oldNames = FALSE, quiet = TRUE)
  list(names = rownames(found), values = unname(found))
}

# The rows whose products with the fixed effects are the linear predictor, and last the offset.
lme4_design <- function(fit, data) {
  terms <- stats::delete.response(stats::terms(fit, fixed.only = TRUE))
  x <- lme4::getME(fit, "X")
  factors <- Filter(is.factor, stats::model.frame(fit, fixed.only = TRUE))
  frame <- with_treatment(stats::model.frame(terms, data, xlev = lapply(factors, levels)))
  rows <- with_treatment(stats::model.matrix(terms, frame, contrasts.arg = attr(x, "contrasts")))
  offset <- stats::model.offset(frame)
  cbind(rows[, colnames(x), drop = FALSE], if (is.null(offset)) 0 else offset)
}

mgcv_design <- function(fit, data) {
  rows <- with_treatment(stats::predict(fit, newdata = data, type = "lpmatrix", discrete = FALSE))
  for (s in Filter(function(s) inherits(s, "random.effect"), fit$smooth))
    rows[, s$first.para:s$last.para] <- 0
  offset <- attr(rows, "model.offset")
  cbind(rows, if (is.null(offset)) 0 else offset)
}

mgcv_inference <- function(fit)
  list(estimate = unname(stats::coef(fit)), covariance = unname(fit$Vp),
       dof = if (fit$scale.estimated) fit$df.residual else Inf,
       residual_df = length(fit$y) - sum(fit$edf1) -
         if (is.null(fit$edf2)) 0 else sum(fit$edf2) - sum(fit$edf),
       deviance = fit$deviance)

mgcv_anova <- function(fit, ddf) {
  found <- summary(fit)
  linear <- if (fit$nsdf > 1) found$pTerms.table
  rows <- rbind(linear, if (length(fit$smooth)) found$s.table[, c(1, 3, 4), drop = FALSE])
  if (is.null(rows)) rows <- matrix(0, 0, 3)
  dof <- rep(if (fit$scale.estimated) fit$df.residual else Inf, nrow(rows))
  list(names = as.character(rownames(rows)), columns = c("num_df", "den_df", "F", "p"),
       values = unname(cbind(rows[, 1], dof, rows[, 2:3, drop = FALSE])))
}

lme4_inference <- function(fit, ddf)
  list(estimate = unname(lme4::fixef(fit)),
       covariance = unname(as.matrix(if (ddf == "Kenward-Roger") pbkrtest::vcovAdj(fit)
                                     else stats::vcov(fit))))

lme4_dof <- function(fit, tested, contrasts, p, ddf)
  apply(matrix(contrasts, ncol = p), 1, function(l) lmerTest::contest1D(tested, l, ddf = ddf)$df)

lme4_anova <- function(fit, tested, ddf) {
  found <- with_treatment(stats::anova(tested, ddf = ddf))
  list(names = rownames(found), values = unname(as.matrix(found)),
       columns = c("sum_sq", "mean_sq", "num_df", "den_df", "F", "p"))
}

# Conditional modes with their conditional standard deviations.
lme4_random_effects <- function(fit) {
  effects <- as.data.frame(lme4::ranef(fit, condVar = TRUE))
  term <- ifelse(effects$term == "(Intercept)", "1", as.character(effects$term))
  list(term = sprintf("(%s | %s)", term, effects$grpvar), level = as.character(effects$grp),
       estimate = effects$condval, std_error = effects$condsd)
}

lme4_loglik_by_ml <- function(fit) as.numeric(stats::logLik(lme4::refitML(fit)))

lme4_fixed <- function(formula)
  all.vars(stats::delete.response(stats::terms(lme4::nobars(stats::as.formula(formula)))))
