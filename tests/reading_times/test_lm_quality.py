"""Perplexity against the paper's product, the PNC and relations against scipy on the paper's Table
2 and the UCL corpus."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy import stats

from psychlm import data
from psychlm import reading_times as reading
from psychlm.corpora import reading_times as corpora
from psychlm.frames import FrameError


def test_the_pnc_of_the_released_models_is_scipys_correlation():
    corpus = corpora.ucl()
    table = reading.quality(corpus.words, corpus.surprisals).set_index("model")
    for model in ("GPT-2", "3-gram"):
        both = pd.concat([corpus.surprisals[model], corpus.words["cloze_surprisal_bits"]], axis=1)
        expected = stats.pearsonr(*both.dropna().to_numpy().T)
        interval = expected.confidence_interval()
        assert table.loc[model, ["pnc", "pnc_low", "pnc_high"]].to_list() == pytest.approx(
            [expected.statistic, interval.low, interval.high]
        )


def test_a_word_that_nobody_said_must_be_smoothed():
    with pytest.raises(ValueError, match="cloze_surprisal is infinite for 1 words"):
        reading.predictability_norm_correlation([1, 2, 3, 4], [1, 2, 3, np.inf])


@pytest.fixture(scope="module")
def table2():
    """Table 2 of Hao et al. (2020), one row per model and measure."""
    about = ["model", "family", "dataset", "perplexity", "pnc"]
    table = data.published("hao2020.table2").drop(columns="source")
    return table.melt(about, var_name="measure", value_name="gain")


def test_the_relation_to_gain_is_scipys_regression_on_table_2(table2):
    chosen = table2[table2["pnc"] >= 0.4]
    result = reading.gain_relation(chosen, "pnc").set_index("measure")
    for measure, rows in chosen.groupby("measure"):
        line, found = stats.linregress(rows["pnc"], rows["gain"]), result.loc[measure]
        assert found[["r", "p", "slope", "intercept"]].to_list() == pytest.approx(
            [line.rvalue, line.pvalue, line.slope, line.intercept]
        )
        assert found["n"] == 19 and found["low"] < line.rvalue < found["high"]
    groups = ["measure", "dataset"]  # perplexities are compared within a vocabulary
    result = reading.gain_relation(table2, "perplexity", groups=groups).set_index(groups)
    rows = table2[(table2["measure"] == "total_ms") & (table2["dataset"] == "Penn Treebank")]
    line = stats.linregress(rows["perplexity"], rows["gain"])
    found = result.loc[("total_ms", "Penn Treebank"), ["r", "slope"]].to_list()
    assert found == pytest.approx([line.rvalue, line.slope])
    alone = result.loc[("total_ms", "WebText")]  # GPT-2 is alone with its vocabulary
    assert alone["n"] == 1 and alone.drop("n").isna().all()
    with pytest.raises(FrameError, match="gains have no columns .'size'."):
        reading.gain_relation(table2, "size")


def test_perplexity_per_word_is_the_papers_product():
    p = np.array([0.5, 0.02, 0.25, 0.4, 0.05])
    keys = pd.DataFrame({"text_id": list("11122"), "word_id": [1, 2, 3, 1, 2]})
    norms = keys.assign(word="w", cloze_surprisal_bits=range(5))
    bits = keys.assign(one=-np.log2(p)).sample(frac=1, random_state=0)
    table = reading.quality(norms, bits)
    assert table["perplexity"].item() == pytest.approx(np.prod(p) ** (-1 / 5))
    with pytest.raises(FrameError, match="4 .text_id, word_id. in common"):
        reading.quality(norms, bits.iloc[1:])
    with pytest.raises(FrameError, match=r"\['two'\] have no surprisal for other words than 'one'"):
        reading.quality(norms, bits.assign(two=bits["one"].where(bits["word_id"] > 1)))


def test_released_surprisals_have_the_reading_scores_of_the_babylm_pipeline() -> None:
    """Reference: the scores of BabyLM's evaluation pipeline 2025."""
    corpus = corpora.ucl()
    eye = ["first_fixation_ms", "gaze_ms", "right_bounded_ms", "go_past_ms"]
    score = partial(reading.explained_share, corpus.words, corpus.readings, corpus.surprisals)
    tracked = score(eye, n_bootstrap=200).set_index("model")
    self_paced = score("self_paced_ms", spillover=True).set_index("model")["share"]
    shares = tracked.loc[["GPT-2", "GPT-2 XL", "3-gram"], "share"]
    assert shares.tolist() == pytest.approx([9.77, 9.31, 0.49], abs=0.0051)
    assert self_paced["GPT-2"] == pytest.approx(2.18, abs=0.0051)
    assert (tracked["low"] < tracked["share"]).all() and (tracked["share"] < tracked["high"]).all()


def test_the_explained_share_is_that_of_two_least_squares_fits() -> None:
    """Reference: statsmodels' R2 of the two formulas, for a measure with spillover."""
    rng, keys = np.random.default_rng(1), ["text_id", "word_id"]
    words = pd.DataFrame({"text_id": np.repeat([*"abc"], 40), "word_id": [*range(1, 41)] * 3})
    words = words.assign(word="w", position=words["word_id"], length_chars=rng.integers(1, 9, 120))
    words["log_frequency"] = rng.normal(size=120)
    both = words.assign(y=rng.normal(250, 30, 120), s=rng.gamma(2, 3, 120))
    score = partial(reading.explained_share, words, both[[*keys, "y"]], measure="y", spillover=True)
    share = score(both[[*keys, "s"]])
    before = both.groupby("text_id")[["length_chars", "s"]].shift().add_prefix("prev_")
    both = both.join(before).dropna()
    baseline = "y ~ (log_frequency + length_chars + position + prev_length_chars + prev_s)**2"
    r2 = [smf.ols(formula, both).fit().rsquared for formula in (baseline, f"{baseline} + s")]
    assert share["share"].item() == pytest.approx(100 * (r2[1] - r2[0]) / (1 - r2[0]), rel=1e-9)
    assert share["n"].item() == len(both)
    # a model without some words is compared on those that both have, and they are counted
    gaps = both[[*keys, "s"]].assign(t=rng.gamma(2, 3, len(both)))
    gaps["t"] = gaps["t"].where(both["text_id"] != "b")
    with pytest.warns(RuntimeWarning, match=r"of the 76 words .* by model: \{'s': 38\}"):
        found = score(gaps, n_bootstrap=5)
    few = score(gaps[both["text_id"] != "b"], n_bootstrap=5)
    pd.testing.assert_frame_equal(found, few)
    with pytest.raises(FrameError, match="5 words have all predictors, .* need 18"):
        score(both.iloc[:6][[*keys, "s"]])
    flat = both[[*keys]].assign(s=0.3)
    with pytest.raises(FrameError, match=r"columns \['s'\] are constant in the 117 words"):
        reading.explained_share(words, both[[*keys, "y"]], flat, "y")
