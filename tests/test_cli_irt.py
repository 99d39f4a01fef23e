"""`psychlm irt fit` and `score`, as a user types them. Reference: R's ltm on LSAT 6 (data/published/ltm.lsat6.csv)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from psychlm import cli, data, irt
from psychlm import corpora


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with LSAT 6 as CSV and Parquet, and a 1PL fit of it."""
    where = tmp_path_factory.mktemp("lsat")
    answers = corpora.lsat6()
    answers.astype(int).to_csv(where / "answers.csv")
    answers.to_parquet(where / "answers.parquet")
    done = CliRunner().invoke(
        cli.main,
        [
            "irt",
            "fit",
            str(where / "answers.csv"),
            "--model",
            "1pl",
            "--out",
            str(where / "fit.json"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "log-likelihood -2466.938 nats" in done.output
    return where


def test_a_fit_on_disk_is_ltms(folder: Path) -> None:
    printed = data.published("ltm.lsat6").set_index("key")["value"]
    fit = irt.IRTFit.from_json(folder / "fit.json")
    for item, b in fit.items["b"].items():
        assert b == pytest.approx(printed[f"1pl.b.{item.replace(' ', '')}"], abs=0.01)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_persons_are_scored_from_either_format(folder: Path, suffix: str) -> None:
    out = folder / f"abilities.{suffix}"
    done = CliRunner().invoke(
        cli.main,
        [
            "irt",
            "score",
            str(folder / "fit.json"),
            str(folder / f"answers.{suffix}"),
            "--out",
            str(out),
        ],
    )
    assert done.exit_code == 0, done.output
    abilities = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    assert len(abilities) == 1000
    by_score = abilities["theta"].groupby(corpora.lsat6().sum(axis=1).to_numpy())
    assert (
        by_score.agg(lambda theta: theta.round(9).nunique()).eq(1).all()
    )  # in the 1PL the sum score says it all
    assert by_score.first().is_monotonic_increasing


def test_scores_go_to_the_screen_unless_a_file_is_named(folder: Path) -> None:
    done = CliRunner().invoke(
        cli.main, ["irt", "score", str(folder / "fit.json"), str(folder / "answers.csv")]
    )
    assert done.output.startswith("person,theta,se\n0,")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("person,q1,q2\na,1,2\nb,0,1\n", "values other than 0, 1 or NaN"),
        ("person,q1,q2\na,1,x\nb,0,y\n", "hold text"),
        ("", "cannot be read as a table"),
        ("person\n", "empty"),
        ("person,q1,q2,q3\na,1,1,0\nb,1,0,1\n", "answered alike"),
    ],
)
def test_a_malformed_table_is_named_without_a_traceback(
    tmp_path: Path, content: str, says: str
) -> None:
    (tmp_path / "bad.csv").write_text(content)
    done = CliRunner().invoke(
        cli.main, ["irt", "fit", str(tmp_path / "bad.csv"), "--out", str(tmp_path / "fit.json")]
    )
    assert done.exit_code == 1
    assert says in done.output
    assert isinstance(done.exception, SystemExit)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.main, ["irt", "score", "no.json", "no.csv"])
    assert (done.exit_code, "Traceback" in done.output) == (1, False)
