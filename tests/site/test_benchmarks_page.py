"""The page and the README's table of speed. Reference: times written by hand, whose ratios are simple."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psychlm import site as notebooks
from psychlm.site import benchmarks

MACHINE = {
    "processor": "A Chip",
    "cores": 2,
    "accelerator": None,
    "system": "Linux x86_64",
    "python": "3.11.7",
}


def leave(reports: Path, module: str, *rows: dict[str, Any], **content: Any) -> None:
    """Write one module's file as `make bench` does."""
    (reports / "bench").mkdir(parents=True, exist_ok=True)
    whole = {"date": "2026-01-02", "machine": MACHINE, "benchmarks": list(rows)} | content
    (reports / "bench" / f"{module}.json").write_text(json.dumps(whole))


def timed(name: str, seconds: float, **noted: Any) -> dict[str, Any]:
    return {"name": f"test_{name}", "seconds": seconds, "rounds": 1, **noted}


def only_module(reports: Path) -> benchmarks.Module:
    (module,), broken = benchmarks.read(reports / "bench")
    assert not broken
    return module


def test_a_benchmark_stands_beside_the_limit_of_its_own_work_and_the_peer_that_did_the_same(
    tmp_path: Path,
) -> None:
    leave(
        tmp_path,
        "surprisal",
        timed("sentences_limit", 4.0),
        timed("sentences[None]", 5.0, words=100),
        timed("sentences_minicons", 10.0),
        timed("documents[None]", 2.0),
        timed("pairs_limit", 1.0),
    )
    sentences, documents, alone = only_module(tmp_path).benchmarks
    assert sentences.name == "sentences, summed" and sentences.noted == "words 100"
    assert {r.name: (r.kind, sentences.times(r)) for r in sentences.rivals} == {
        "bare limit": ("limit", 0.8),
        "minicons": ("peer", 2.0),
    }
    assert not documents.rivals, "the limit of sentences is none of documents"
    assert alone.name == "pairs limit", "a limit without its benchmark is still shown"


def test_peers_that_give_estimates_stand_beside_estimates_of_the_same_size(tmp_path: Path) -> None:
    leave(
        tmp_path,
        "irt",
        timed("psychlm[1000x50-estimates]", 0.05, n_items=50),
        timed("psychlm[1000x50-with-errors]", 0.07),
        timed("psychlm[200x10000-estimates]", 0.3, n_items=500),
        timed("girth[1000x50]", 5.0),
    )
    small, errors, large = only_module(tmp_path).benchmarks
    assert small.name == "1,000 × 50 estimates" and large.name == "200 × 10,000 estimates"
    assert [(r.name, small.times(r)) for r in small.rivals] == [
        ("girth", pytest.approx(100)),
        ("target", 2),
    ]
    assert not errors.rivals
    assert not large.rivals, "a target is for the size it was set for, not for a shrunken one"


def test_rivals_that_a_benchmark_timed_itself_are_read_from_what_it_noted(tmp_path: Path) -> None:
    sweep = timed(
        "sweep_beside_bam[30-6-10]",
        3.0,
        fits=90,
        seconds_a_bam_fit=0.5,
        times_faster=15,
        target_seconds=6,
    )
    leave(tmp_path, "sweep", sweep)
    leave(
        tmp_path,
        "crowd",
        timed("crowd_against_a_loop[bag]", 2.0, **{"loop, wall s": 30.0, "loop, processor s": 7}),
    )
    (crowd, sweep_module), _ = benchmarks.read(tmp_path / "bench")
    (row,) = sweep_module.benchmarks
    assert {r.name: row.times(r) for r in row.rivals} == {"bam (mgcv)": 15.0, "target": 2.0}
    assert row.name.endswith("30 models")
    assert [(r.name, crowd.benchmarks[0].times(r)) for r in crowd.benchmarks[0].rivals] == [
        ("loop", 15.0)
    ]


def test_what_a_curriculum_cannot_do_without_is_added_up(tmp_path: Path) -> None:
    parts = timed("plain_training", 6.0), timed("forward_passes", 2.0)
    leave(tmp_path, "curriculum", timed("ddaclae", 10.0), *parts)
    (row,) = only_module(tmp_path).benchmarks
    assert [(r.kind, r.seconds) for r in row.rivals] == [("limit", 8.0)]
    leave(tmp_path, "curriculum", timed("ddaclae", 10.0), parts[0])
    rows = only_module(tmp_path).benchmarks
    assert [(row.name, row.rivals) for row in rows] == [("ddaclae", ()), ("plain training", ())]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "line 1"),
        ("[]", "benchmarks"),
        ('{"benchmarks": [{"seconds": 1}]}', "name"),
        ('{"benchmarks": [{"name": "test_a", "seconds": "fast"}]}', "test_a"),
        ('{"benchmarks": [{"name": "test_a", "seconds": 0}]}', "not a time"),
        ('{"benchmarks": [{"name": "test_a", "seconds": NaN}]}', "not a time"),
    ],
)
def test_a_malformed_file_is_named_and_the_rest_is_shown(
    tmp_path: Path, text: str, why: str
) -> None:
    leave(tmp_path, "irt", timed("psychlm[1000x50-estimates]", 0.05))
    (tmp_path / "bench" / "sweep.json").write_text(text)
    modules, broken = benchmarks.read(tmp_path / "bench")
    assert [module.name for module in modules] == ["irt"]
    assert list(broken) == ["sweep.json"] and why in broken["sweep.json"]
    page = benchmarks.write_page(tmp_path)
    assert (
        page and "<code>sweep.json</code>" in page.read_text() and "1,000 × 50" in page.read_text()
    )


def test_the_raw_file_of_pytest_benchmark_is_no_module(tmp_path: Path) -> None:
    leave(tmp_path, ".raw", timed("a", 1.0))
    assert benchmarks.read(tmp_path / "bench") == ([], {})
    assert benchmarks.write_page(tmp_path) is None and not (tmp_path / "benchmarks.html").exists()


def test_the_page_has_a_figure_in_words_too_and_runs_no_script(tmp_path: Path) -> None:
    leave(
        tmp_path,
        "lists",
        timed("sort_limit", 0.5),
        timed("sort", 1.0, kind="<script>alert(1)</script>"),
    )
    page = benchmarks.write_page(tmp_path)
    assert page
    text = page.read_text()
    assert 'alt="Seconds of the benchmarks of lists: sort 1 s (bare limit 0.5 s)."' in text
    assert 'src="data:image/svg+xml;base64,' in text and "<script" not in text
    assert "2026-01-02 on A Chip, 2 cores, Linux x86_64, Python 3.11.7" in text
    again = benchmarks.write_page(tmp_path)
    assert again and again.read_text() == text, "the same times make the same page"


def test_one_benchmark_beside_nothing_and_a_module_that_was_skipped_make_a_page(
    tmp_path: Path,
) -> None:
    leave(tmp_path, "probes", timed("build", 12.0), machine=None)
    leave(tmp_path, "gpu")
    page = benchmarks.write_page(tmp_path)
    assert page
    assert "a machine that was not described" in page.read_text()
    assert "<code>gpu</code>: every benchmark was skipped" in page.read_text()


def test_the_front_page_leads_to_the_page_of_speed_where_there_is_one(tmp_path: Path) -> None:
    assert "benchmarks.html" not in notebooks.build_index(tmp_path, tmp_path).read_text()
    leave(tmp_path, "irt", timed("psychlm[1000x50-estimates]", 0.05))
    assert '<a href="benchmarks.html">' in notebooks.build_index(tmp_path, tmp_path).read_text()
    assert (tmp_path / "benchmarks.html").is_file()


def test_the_table_shows_the_least_favourable_benchmark_beside_each_rival(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    leave(
        reports,
        "surprisal",
        timed("a_limit", 1.0),
        timed("a", 2.0),
        timed("b_limit", 1.0),
        timed("b", 4.0),
        timed("a_minicons", 6.0),
    )
    leave(
        reports,
        "probes",
        timed("all_probes_with_perturbations", 60.0, scale=1.0),
        timed("other", 70.0),
    )
    leave(reports, "alone", timed("quick", 0.001), timed("slow", 2.0))
    assert benchmarks.speed_table(tmp_path).splitlines()[2:] == [
        "| `alone` | slow | 2 s | – | – | – | A Chip, 2 cores, 2026-01-02 |",
        "| `probes` | all probes with perturbations | 60 s | target | 180 s | 3 | A Chip, 2 cores, 2026-01-02 |",
        "| `surprisal` | b | 4 s | bare limit | 1 s | 0.25 | A Chip, 2 cores, 2026-01-02 |",
        "| `surprisal` | a | 2 s | minicons | 6 s | 3 | A Chip, 2 cores, 2026-01-02 |",
    ]


def test_the_table_goes_between_its_marks_and_nowhere_else(tmp_path: Path) -> None:
    leave(tmp_path / "reports", "irt", timed("psychlm[1000x50-estimates]", 0.05))
    (tmp_path / "README.md").write_text("before\n<!-- speed -->\nold\n<!-- /speed -->\nafter\n")
    assert benchmarks.write_table(tmp_path)
    table = benchmarks.speed_table(tmp_path)
    assert (
        tmp_path / "README.md"
    ).read_text() == f"before\n<!-- speed -->\n{table}<!-- /speed -->\nafter\n"
    assert not benchmarks.write_table(tmp_path), "a second time changes nothing"
    (tmp_path / "README.md").write_text("no marks\n")
    assert not benchmarks.write_table(tmp_path)


def test_a_table_is_not_made_from_a_malformed_file(tmp_path: Path) -> None:
    leave(tmp_path / "reports", "irt", timed("psychlm[1000x50-estimates]", 0.05))
    (tmp_path / "reports" / "bench" / "sweep.json").write_text("{")
    with pytest.raises(ValueError, match="reports/bench/sweep.json"):
        benchmarks.speed_table(tmp_path)
