"""``psychlm adapt``: a language model takes an adaptive test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from psychlm.terminal import FILE, check_out, device_option, from_here, say, write_or_say


@click.command()
@click.option("--model", "name", required=True, help="A name or folder.")
@click.option("--bank", default="diagnostic", help="GLUE's items, or a file of `psychlm irt fit`.")
@click.option("--questions", help="Their texts, of a bank of your own: a dataset or file of items.")
@click.option("--items", "n_items", type=click.IntRange(1), default=20)
@click.option("--stop-se", type=float, help="End at this standard error of ability (logits).")
@click.option("--cut", type=float, help="End once ability is above or below this (logits).")
@click.option("--answers", type=FILE, help="A JSON file that keeps the answers, to go on from.")
@click.option("--out", type=FILE, help="What was asked and why: a CSV, TSV or Parquet file.")
@device_option
def adapt(
    name: str, bank: str, questions: str | None, out: Path | None, device: str, **options: Any
) -> None:
    """Ask a language model the items that say most about its ability, one after the other.

    Scores are cached, so that an interrupted test goes on where it was.
    """
    from psychlm import irt, lm

    check_out(out, bank)
    fit, items, takers = read_bank(bank, questions)
    taker = lm.ItemTaker(items, from_here(name, is_model=True), device=device)

    def ask(item: Any) -> float:
        right = taker(item)
        say(f"item {item}: {'right' if right else 'wrong'}", err=True)
        return right

    if (cut := options["cut"]) is not None:
        options["cut"] = irt.CutScore(cut)
    test = irt.adaptive_test(fit, {name: ask}, **options)
    history = test.history.droplevel(0)
    write_or_say(history if out else history.round(3), out)
    last = history.iloc[-1]
    decided = "" if cut is None else f", {test.decision.iloc[0]} the cut of {cut:g}"
    say(
        f"{name}: ability {last['theta']:.2f} (standard error {last['se']:.2f}) logits after "
        f"{len(history)} of {len(fit.items)} items, {taker.n_scored} choices scored{decided}; "
        f"expected to have {last['score']:.0%} of the bank right",
        err=True,
    )
    if takers is not None:
        below = (fit.score(takers)["theta"] < last["theta"]).mean()
        say(f"above {below:.0%} of the {len(takers)} models that calibrated the bank", err=True)


def read_bank(bank: str, questions: str | None) -> tuple[Any, Any, Any]:
    """Return the fit of a bank, its items frame, and the responses it was calibrated on, if any."""
    from psychlm import corpora, irt

    if bank == "diagnostic":
        if questions is not None:
            raise click.BadParameter("--questions are the texts of a bank of your own: name --bank")
        responses = corpora.laverghetta2021().models
        responses = responses.loc[:, responses.nunique() > 1]
        # 240 models say little about single slopes
        weak: dict[str, Any] = {"slope": irt.LogNormal(0, 1)}
        fit = irt.fit(responses, "2PL", priors=weak, standard_errors=False)
        return fit, corpora.read_items("laverghetta2021/diagnostic_results"), responses
    if not Path(bank).is_file() or questions is None:
        raise click.BadParameter(
            f"--bank {bank} is neither `diagnostic` nor a file that `psychlm irt fit` wrote, with "
            "--questions, the texts of its items. metabench's banks hold answers without the texts"
        )
    fit = irt.IRTFit.from_json(bank)
    items = corpora.read_items(questions)
    items = items.assign(item_id=items["item_id"].astype(str))
    absent = fit.items.index.astype(str).difference(items["item_id"])
    if len(absent):
        raise click.BadParameter(
            f"{questions} has no text for {len(absent)} of {len(fit.items)} items, as {absent[0]!r}"
        )
    return fit, items, None
