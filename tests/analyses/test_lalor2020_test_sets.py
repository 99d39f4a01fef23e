"""Stopped EM. Reference: the maximum that irt.fit finds."""

from analyses import lalor2020_test_sets
from psychlm import corpora, data, irt


def test_em_ends_at_the_maximum_and_stops_before_it_at_a_coarse_tolerance() -> None:
    lsat = corpora.lsat6()
    best = irt.fit(lsat, "2PL").items
    tight, coarse = (lalor2020_test_sets.stopped_em(lsat, t) for t in (1e-6, 2e-3))
    assert (tight[["a", "b"]] - best[["a", "b"]]).abs().max(axis=None) < 2e-3
    assert (coarse["b"] - best["b"]).abs().max() > 10 * (tight["b"] - best["b"]).abs().max()


def test_a_stored_selection_comes_out_again_and_the_printed_count_is_among_them() -> None:
    stored = data.facts("lalor2018/selections")
    assert (stored["n_retained"] == stored["retained"].str.split().str.len()).all()
    printed = stored[stored["n_retained"] == 77]  # Lalor (2020), section 2.3
    assert printed[["key", "order", "correction"]].to_numpy().tolist() == [
        ["majority", "fit slope", "holm"]
    ]
    again = lalor2020_test_sets.selections(printed[["key", "order", "guessing", "correction"]])
    assert again["retained"].tolist() == printed["retained"].tolist()
