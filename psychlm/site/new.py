"""A new numbered notebook, with the anatomy in place: it runs as it is, on simulated answers, and waits for yours."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from psychlm.site import collection, storage
from psychlm.site.collection import NotebookError

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}

# (kind, tag, metadata for the picture, source); $name, $title and $number are filled in.
_CELLS: list[tuple[str, str, dict[str, str], str]] = [
    (
        "markdown",
        "",
        {},
        """\
# $number $title

**Question.** Which items of this test tell persons apart?

**Claim tested.** Say in one or two sentences what is claimed, by whom, and what would speak against it.

*Reads* simulated answers, until yours take their place · *Writes* `reports/$name.json` · *Runs in* seconds""",
    ),
    (
        "code",
        "parameters",
        {},
        """\
seed = 1  # fixes every random draw below
n_persons = 500  # simulated persons
n_items = 20  # simulated items""",
    ),
    (
        "code",
        "setup",
        {},
        """\
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown

from psychlm import ctt, irt, plots, report, simulate

plots.use_style()
rng = np.random.default_rng(seed)
report.begin("$name", seed=seed, n_persons=n_persons, n_items=n_items)""",
    ),
    (
        "code",
        "",
        {},
        """\
report.set_data_kind("simulated")
report.banner("simulated", "read your own table with `frames.read_responses`, and say `real` in this cell")""",
    ),
    (
        "markdown",
        "",
        {},
        """\
## The data

Where they come from, who answered, what was left out and why. One call, its shape, its contract: `simulate` checks it
here; `frames.read_responses("my.csv")` does for a file with persons in rows and items in columns.""",
    ),
    (
        "code",
        "",
        {},
        """\
truth = simulate.items(n_items, rng)
answers = simulate.responses(rng.normal(size=n_persons), truth, rng)
print(f"{answers.shape[0]} persons x {answers.shape[1]} items, {answers.isna().to_numpy().mean():.1%} not asked")
answers.iloc[:5, :8]""",
    ),
    (
        "markdown",
        "",
        {},
        """\
## The model

A person of ability $$\\theta_j$$ answers item $$i$$ of difficulty $$b_i$$ (logits) and slope $$a_i$$ correctly with
probability

$$$$P(y_{ij} = 1) = \\frac{1}{1 + e^{-a_i(\\theta_j - b_i)}}, \\qquad \\theta_j \\sim N(0, 1).$$$$""",
    ),
    (
        "code",
        "",
        {},
        """\
fit = irt.fit(answers, model="2PL")
assert fit.converged
fit.items[["a", "b", "se_a", "se_b"]].head().style.format("{:.2f}")""",
    ),
    (
        "markdown",
        "",
        {},
        """\
## Can it be trusted?

Recovery of known parameters, or a published number. Here: how far the estimates lie from the truth, in their own
errors.""",
    ),
    (
        "code",
        "",
        {},
        """\
inside = ((fit.items["b"] - truth["b"]).abs() < 1.96 * fit.items["se_b"]).mean()
report.record("$slug.recovery.b", inside, unit="share of intervals")
Markdown(f"**{inside:.0%}** of the 95 % intervals hold the difficulty that the answers were drawn from.")""",
    ),
    ("markdown", "", {}, "## The result\n\nOne message a figure: say before it what to look for."),
    (
        "code",
        "headline",
        {
            "caption": "Difficulty and slope of every item, with standard errors.",
            "alt": "Scatter plot of item slope against item difficulty with error bars.",
        },
        """\
fig, ax = plt.subplots()
items = fit.items
ax.errorbar(items["b"], items["a"], xerr=items["se_b"], yerr=items["se_a"], fmt="o")
_ = ax.set(xlabel="difficulty b (logits)", ylabel="slope a (per logit)")""",
    ),
    (
        "markdown",
        "",
        {},
        "## One decision changed\n\nWhich choice above could have been made otherwise, and what would it change?",
    ),
    (
        "code",
        "",
        {},
        """\
alpha = ctt.cronbach_alpha(answers)
report.record("$slug.alpha", alpha)
report.finish()
Markdown(f"By classical test theory the test is as reliable as α = **{alpha:.2f}** says.")""",
    ),
    (
        "markdown",
        "",
        {},
        "## Limits and references\n\nWhat this cannot show, what would change the answer, and whose work it rests on.",
    ),
]


def new(title: str, *, root: Path, number: int | None = None) -> Path:
    """Write a notebook that has the collection's anatomy and runs as it is; add it to the tests' profile.

    Parameters
    ----------
    title : str
        Its title; the file's name is made of it.
    root : Path
        The checkout.
    number : int, optional
        Two digits that place it in the collection; the next free one below 90 after the last unless given.

    Returns
    -------
    Path
        The notebook.

    Raises
    ------
    NotebookError
        If the title holds no letter or the number is taken.
    """
    slug = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
    if not re.search(r"[a-z]", slug):
        raise NotebookError(
            f"the title {title!r} holds no Latin letter to make a file name of; give another"
        )
    taken = {int(notebook.number): notebook.name for notebook in collection.find(root)}
    number = max((n for n in taken if n < 89), default=-1) + 1 if number is None else number
    if number in taken or not 0 <= number <= 99:
        free = ", ".join(f"{n:02d}" for n in range(100) if n not in taken)
        raise NotebookError(
            f"number {number:02d} is {taken.get(number, 'not of two digits')}; free are: {free}"
        )
    name = f"{number:02d}_{slug}"
    words = {"name": name, "title": title.strip(), "number": f"{number:02d}", "slug": slug}
    notebook = new_notebook(
        cells=[_cell(*cell, words=words) for cell in _CELLS],
        metadata={
            "kernelspec": KERNEL,
            "language_info": {"name": "python"},
            "psychlm": {"reproduces": "–"},
        },
    )
    path = root / "notebooks" / f"{name}.ipynb"
    storage.write(path, nbformat.writes(notebook) + "\n")
    smoke = root / collection.PROFILE_FILES["smoke"]
    storage.write(
        smoke, smoke.read_text(encoding="utf-8").rstrip("\n") + f"\n{name}:\n  n_persons: 200\n"
    )
    return path


def _cell(
    kind: str, tag: str, picture: dict[str, str], source: str, *, words: dict[str, str]
) -> nbformat.NotebookNode:
    make = new_code_cell if kind == "code" else new_markdown_cell
    metadata = ({"tags": [tag]} if tag else {}) | ({"psychlm": picture} if picture else {})
    return make(Template(source).substitute(words), metadata=metadata)
