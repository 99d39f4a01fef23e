"""Stopped EM. Reference: the maximum that irt.fit finds."""

from analyses import lalor2020_test_sets
from psychlm import corpora, irt


def test_em_ends_at_the_maximum_and_stops_before_it_at_a_coarse_tolerance() -> None:
    lsat = corpora.lsat6()
    best = irt.fit(lsat, "2PL").items
    tight, coarse = (lalor2020_test_sets.stopped_em(lsat, t) for t in (1e-6, 2e-3))
    assert (tight[["a", "b"]] - best[["a", "b"]]).abs().max(axis=None) < 2e-3
    assert (coarse["b"] - best["b"]).abs().max() > 10 * (tight["b"] - best["b"]).abs().max()
