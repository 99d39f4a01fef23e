"""The command ``psychlm``: data, surprisal, responses, item response models; cli_*.py: the rest."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psychlm import __version__, data, roles
from psychlm.cli_card import card
from psychlm.cli_notebooks import new, run
from psychlm.terminal import (
    FILE,
    PATH,
    TABLES,
    answers_options,
    check_out,
    choice_option,
    device_option,
    print_table,
    printable,
    read_answers,
    say,
    write_or_say,
    write_table,
)

if TYPE_CHECKING:
    import pandas as pd

TEXTS = (".txt", ".md", ".text", ".markdown", ".rst")
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # the disk, the largest file, a quota

spreadsheet_option = click.option(
    "--spreadsheet", is_flag=True, help="Put an apostrophe before what a spreadsheet would run."
)
no_cache_option = click.option("--no-cache", is_flag=True, help="Compute anew, and store nothing.")
out_option = click.option("--out", type=FILE, help="A CSV, TSV or Parquet file; or the screen.")

# Of allocators, the system, the loader of a library, and an import in Python 3.13; compiled before
# memory is short.
NO_MEMORY = re.compile(
    "alloc(at\\w+)? ?memory|out of memory|not enough memory|failed to map segment"
    "|error return without exception set",
    re.IGNORECASE,
)


class PlainErrors(click.Group):
    """Commands whose expected errors are one line and exit code 1; others are our defects."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; ``PSYCHLM_TRACEBACK=1`` shows where an error came from."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_: say(
                    f"psychlm: {roles.in_shell(str(message))}", err=True
                )
                return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = printable(error.message)
            raise
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            text = str(error).strip()
            lacks_memory = isinstance(error, MemoryError) or NO_MEMORY.search(text)
            of_package = type(error).__module__.startswith("psychlm")
            expected = of_package or lacks_memory or isinstance(error, (ValueError, OSError))
            if not expected or os.environ.get("PSYCHLM_TRACEBACK"):
                raise
            if lacks_memory:
                text = f"out of memory; use fewer rows ({text or 'MemoryError'})"
            if getattr(error, "errno", None) in FULL:
                text += "; nothing half-written is left. Free the disk, or write to another one"
        say(f"psychlm: {roles.in_shell(text)}", err=True)
        sys.exit(1)


settings = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=PlainErrors, context_settings=settings)
@click.version_option(__version__)
def main() -> None:
    """Do language models find difficult what people find difficult?"""


for command in (run, new, card):
    main.add_command(command)


@main.command()
def doctor() -> None:
    """Show which optional parts are installed (GPU, R, WordNet, data ...), and what each adds."""
    from psychlm import doctor as parts

    rows = parts.examine()
    print_table(["", "part", "found, or how to get it", "what it adds"], rows)
    say(f"\n{sum(row[0] == 'yes' for row in rows)} of {len(rows)} optional parts are here.")


@main.group(name="data")
def data_group() -> None:
    """List, fetch and verify the datasets of data/registry.csv."""


@data_group.command(name="list")
def data_list() -> None:
    """Show every dataset: state (checksum), place, size and licence."""
    rows = [
        [row["name"], row["state"], row["place"], f"{row['bytes'] / 1e6:.2f} MB", row["licence"]]
        for row in data.state()
    ]
    print_table(["name", "state", "place", "size", "licence"], rows)


@data_group.command(name="pull")
@click.argument("names", nargs=-1)
def data_pull(names: tuple[str, ...]) -> None:
    """Fetch datasets into data/raw/ (without NAMES, all that have an address and are not here).

    Whole training sets (SNLI, MNLI ...: hundreds of megabytes) are fetched by name only.
    """
    datasets = data.registry()
    failed = False
    large = datasets["note"].str.startswith("released once")
    for name in names or list(datasets.index[(datasets["url"] != "") & ~large]):
        try:
            path = None if names else data.verify(name)
            say(f"{name}: {path or data.fetch(name)}")
        except data.DataError as error:
            say(f"psychlm: {error}", err=True)
            failed = True
    sys.exit(1 if failed else 0)


@data_group.command(name="verify")
@click.argument("names", nargs=-1)
def data_verify(names: tuple[str, ...]) -> None:
    """Check the SHA-256 of every dataset on this machine; exit 1 if one is corrupt."""
    rows = list(data.state(names or None))
    for row in rows:
        if row["error"]:
            say(f"psychlm: {row['error']}", err=True)
    for state, count in Counter(row["state"] for row in rows).items():
        say(f"{count:4d} {state}")
    sys.exit(1 if any(row["error"] for row in rows) else 0)


@data_group.command(name="where")
@click.argument("name")
def data_where(name: str) -> None:
    """Print the verified local path of a dataset; fetch it if it is not here."""
    say(data.path(name))


@main.group(name="irt")
def irt_group() -> None:
    """Fit item response models to persons x items tables, and score persons with them."""


def parse_priors(assignments: tuple[str, ...]) -> dict[str, Any] | None:
    """Turn ``("slope=lognormal:0,0.5",)`` into ``{"slope": LogNormal(0, 0.5)}``."""
    from psychlm import irt

    kinds: dict[str, Any] = {"beta": irt.Beta, "normal": irt.Normal, "lognormal": irt.LogNormal}
    priors = {}
    for assignment in assignments:
        match = re.fullmatch(r"(\w+)=(\w+):([^,]+),([^,]+)", assignment.replace(" ", ""))
        if match is None or match[2].lower() not in kinds:
            form = f"NAME=KIND:A,B with KIND one of {', '.join(kinds)}"
            raise click.BadParameter(f"{assignment!r}; write {form}, as slope=lognormal:0,0.5")
        try:
            priors[match[1]] = kinds[match[2].lower()](float(match[3]), float(match[4]))
        except ValueError as error:
            raise click.BadParameter(f"{assignment!r}: {error}") from None
    return priors or None


@irt_group.command(name="fit")
@click.argument("responses", type=PATH)
@click.option("--model", default="2PL", help="1PL to 4PL, Rasch, graded, gpcm, PCM, RSM, nominal.")
@click.option(
    "--prior", "priors", multiple=True, metavar="NAME=KIND:A,B", help="As guessing=beta:5,17."
)
@answers_options
@click.option("--out", type=FILE, required=True, help="A JSON file for the fit.")
def irt_fit(responses: Path, model: str, priors: Any, out: Path, **told: Any) -> None:
    """Fit a model to RESPONSES: a wide or long table, or logs, as corpora.read_answers takes.

    The slope is common (1PL), 1 (Rasch) or each item's (2PL), with guessing (3PL) and an upper
    asymptote (4PL); graded and gpcm are models of ratings.
    """
    from psychlm import irt
    from psychlm.irt import response_functions

    check_out(out, responses, suffixes=(".json",))
    level = "binary" if response_functions.model_named(model).dichotomous else "ratings"
    answers = read_answers(responses, roles.parsed(told) | {"level": level})
    fit = irt.fit(answers.responses, model, priors=parse_priors(priors))
    fit.to_json(out)
    say(fit.items.drop(columns="c_is_free", errors="ignore").round(3).to_string())
    converged = "converged" if fit.converged else "NOT converged"
    say(
        f"\n{fit.model}, {fit.n_persons} persons: log-likelihood {fit.loglik:.3f} nats, "
        f"AIC {fit.aic:.1f}, BIC {fit.bic:.1f}, {fit.n_iterations} EM steps, {converged}; {out}"
    )
    sys.exit(0 if fit.converged else 1)


@irt_group.command(name="score")
@click.argument("fit", type=PATH)
@click.argument("responses", type=PATH)
@choice_option("--method", "eap map ml wle", "eap", "How abilities are estimated.")
@answers_options
@out_option
@spreadsheet_option
def irt_score(
    fit: Path, responses: Path, method: Any, out: Path | None, spreadsheet: bool, **told: Any
) -> None:
    """Score the persons of RESPONSES with FIT, a file that `psychlm irt fit` wrote.

    A person without any answer has a row without ability, and the reason.
    """
    from psychlm import irt
    from psychlm.frames import Repeated

    check_out(out, fit, responses)
    fitted = irt.IRTFit.from_json(fit)
    level = "binary" if fitted.levels is None else "ratings"
    options = roles.parsed(told) | {"level": level, "unanswered": True}
    answered = read_answers(responses, options).responses
    items = answered.mean.columns if isinstance(answered, Repeated) else answered.columns
    known = items.isin(fitted.items.index.astype(str))
    if not known.all():
        say(f"items that {fit} lacks are not scored: {', '.join(items[~known])}", err=True)
    without = fitted.items.index.astype(str).difference(items)
    if len(without):
        n = len(fitted.items)
        said = f"abilities rest on {n - len(without)} of the {n} items of {fit}"
        say(f"psychlm: {said}; without answers: {', '.join(without)}", err=True)
    if isinstance(answered, Repeated):
        abilities = fitted.score(answered.select(items=items[known]), method)
    else:
        abilities = fitted.score(answered.loc[:, known], method)
    silent = abilities["theta"].isna()
    if silent.any():
        abilities["reason"] = silent.map({True: "answered no item", False: ""})
    write_or_say(abilities, out, spreadsheet=spreadsheet)


@main.command()
@click.argument("responses", type=PATH)
@click.option("--n-items", type=click.IntRange(1), help="How many items to keep.")
@click.option("--family", metavar="TEXT", help="Hold out together whose names agree up to TEXT.")
@answers_options
@out_option
def shorten(
    responses: Path, n_items: int | None, family: str | None, out: Path | None, **told: Any
) -> None:
    """Choose the items of RESPONSES that predict the proportion correct on all of them best."""
    from psychlm import irt
    from psychlm.frames import Repeated

    check_out(out, responses)
    if n_items is None:
        raise click.BadParameter("how many items are kept? --n-items 10")
    table = read_answers(responses, roles.parsed(told) | {"level": "binary"}).responses
    persons = table.mean.index if isinstance(table, Repeated) else table.index
    names = persons.to_series().astype(str)
    families = names.str.split(family, regex=False).str[0] if family else None
    form = irt.short_form(table, n_items, families=families)
    write_or_say(form.items, out)
    errors = form.errors.loc["forward"]
    say(
        f"score = {form.intercept:.2f} + the sum of the weights of right answers (points of 100); "
        f"error on new {'families' if family else 'persons'}: {errors['rmse']:.2f} "
        f"[{errors['low']:.2f}, {errors['high']:.2f}] points, of random items "
        f"{form.errors.loc['random', 'rmse']:.2f} ({form.n_persons:,} persons, "
        f"{form.n_families:,} families); {form.verdict}",
        err=True,
    )


def read_scores(path: Path, value: str | None, cluster: str | None) -> pd.DataFrame:
    """Return ``score`` and ``cluster`` of a table, by its columns of ids or by its first column."""
    import pandas as pd

    from psychlm.corpora._formats import GRADES
    from psychlm.corpora._sniff import numbers_of, read_table, unique_columns
    from psychlm.frames import FrameError

    keys = ("subject", "text_id", "word_id", "item_id", "item")
    table = unique_columns(read_table(path).cells)
    text = [name for name in keys if name in table and name != "word_id"] or [table.columns[0]]
    for name in table.columns.difference([*text, cluster]):
        cells = table[name].mask(table[name].eq("NA"))
        grades = cells.astype("str").str.casefold().map(GRADES)
        table[name] = grades if grades.notna().eq(cells.notna()).all() else numbers_of(cells)
    labels = [name for name in keys if name in table] or [table.columns[0]]
    numbers = table.select_dtypes(["number", "bool"]).columns.difference([*labels, cluster])
    value = value or (numbers[0] if len(numbers) == 1 else "--value")
    unknown = [name for name in (value, cluster) if name and name not in table]
    if unknown:
        said = f"{path} has no columns {unknown}; its labels are {labels}, its numbers"
        raise FrameError(f"{said} {list(numbers)}; name the column of scores: --value")
    columns = {"score": table[value]} | ({"cluster": table[cluster]} if cluster else {})
    return pd.DataFrame(columns).set_index([table[name].astype(str) for name in labels])


@main.command()
@click.argument("files", type=PATH, nargs=-1, required=True, metavar="A.csv B.csv | RESPONSES")
@click.option("--value", help="The column of scores, where there are several of numbers.")
@click.option("--cluster", help="A column of A.csv that names what items share, such as text_id.")
@click.option("--level", default=0.95, help="Coverage of the intervals.")
@choice_option("--method", "means irt", "means", "Scores of many models; irt where items differ.")
@click.option("--pass-at", type=click.IntRange(1), help="Compare pass@k of repeated answers.")
@answers_options
@click.option("--out", type=FILE, help="Write all pairs of many models as CSV, TSV or Parquet.")
def compare(
    files: tuple[Path, ...],
    value: str | None,
    cluster: str | None,
    level: float,
    method: Any,
    pass_at: int | None,
    out: Any,
    **told: Any,
) -> None:
    """Is A better than B on the same items or words? Or all pairs of the rows of RESPONSES.

    A.csv and B.csv have one row an item or word; rows are matched by text_id and word_id, item_id,
    or the first column. RESPONSES is a table or logs of many models, one row a model.
    """
    import psychlm
    from psychlm import comparison

    check_out(out, *files)
    if len(files) == 1:
        if value or cluster:
            raise click.BadParameter("--value and --cluster name columns of two files, not of one")
        # items of models may have any scores; item response models take 0 and 1
        needed = "scores" if method == "means" else "binary"
        answers = read_answers(files[0], roles.parsed(told) | {"level": needed})
        how = {"level": level, "method": method, "pass_at": pass_at}
        compared = psychlm.compare(answers.responses, **how)
        if out is not None and isinstance(compared, comparison.Ranking):
            write_table(compared.pairs, out, index=False)
    elif len(files) == 2 and out is None:
        if method != "means" or pass_at or any(told.values()):
            raise click.BadParameter("two files have scores: they take --value and --cluster only")
        first = read_scores(files[0], value, cluster)
        second = read_scores(files[1], value, None)
        stems = (files[0].stem, files[1].stem)
        options = {"level": level, "cluster": first.get("cluster")}
        options["names"] = stems if stems[0] != stems[1] else None
        compared = psychlm.compare(first["score"], second["score"], **options)
    else:
        raise click.BadParameter("two files of one model each, or one of many models (with --out)")
    say(compared)


def read_words(source: str, *, lines: bool = False) -> pd.DataFrame:
    """Return the words of a text, of standard input (``-``), of a text file or a words table."""
    import pandas as pd

    from psychlm import frames, lm
    from psychlm.corpora import _encodings, _sniff

    path = Path(source)
    suffix = path.suffix.lower()
    is_named_as_one = bool(re.fullmatch(r"\S+\.[A-Za-z]\w{0,7}", source))
    is_file = is_named_as_one or (0 < len(source) < 1000 and path.exists())
    if lines and (suffix in TABLES or not (is_file or source == "-")):
        raise frames.FrameError("--lines is for text files; a table has its own text_id")
    if source != "-" and not is_file:
        return lm.words_of(source)
    if is_file and not path.is_file():
        advice = f"a text that ends in {suffix} needs a space at its end"
        raise FileNotFoundError(f"there is no file {source}; {advice}")
    if is_file and suffix not in (*TABLES, *TEXTS):
        said = f"{source} is neither a text file ({', '.join(TEXTS)}) nor a table of words"
        raise frames.FrameError(f"{said} ({', '.join(TABLES)} with text_id, word_id and word)")
    if suffix == ".parquet":
        return pd.read_parquet(path)
    if suffix in TABLES:  # words like None and NA are words; text ids keep leading zeros
        return _sniff.read_csv(path, ["text_id", "word"])
    raw = sys.stdin.buffer.read() if source == "-" else path.read_bytes()
    text, encoding = _encodings.decode("standard input" if source == "-" else path, raw=raw)
    if encoding != "UTF-8":
        say(f"{source}: read as {encoding}", err=True)
    if lines:
        return lm.words_of([line for line in re.split("\r\n?|\n", text) if line.strip()])
    return lm.words_of({"text" if source == "-" else path.stem: text})


@main.command()
@click.argument("source", metavar="TEXT|FILE|-")
@click.option(
    "--model", "names", default=["default"], multiple=True, help="A folder or hub name; repeatable."
)
@out_option
@choice_option("--unit", "word token sentence", "word", "What a row of the result is.")
@choice_option("--correction", "pimentel-meister none", "pimentel-meister", "How word ends count.")
@click.option("--stride", type=int, help="Tokens between the windows over a long text.")
@click.option("--lines", is_flag=True, help="Each line of a text file is a text of its own.")
@click.option("--entropy", is_flag=True, help="Also the entropy before each word.")
@click.option("--rank", is_flag=True, help="Also the rank of each word's first token.")
@device_option
@no_cache_option
@spreadsheet_option
def surprisal(
    source: str, names: tuple[str, ...], out: Path | None, lines: bool, **options: Any
) -> None:
    """Surprisal (bits) of every word of a TEXT, a text file, a table of words, or standard input.

    Results are cached: a second run is fast and an interrupted one resumes.
    """
    check_out(out, source)
    words = read_words(source, lines=lines)
    import numpy as np
    import pandas as pd

    from psychlm import lm

    spreadsheet = options.pop("spreadsheet")
    options |= {"cache": not options.pop("no_cache"), "progress": sys.stderr.isatty()}
    if options["correction"] == "none":
        options["correction"] = None
    parts = {name: lm.surprisal(words, name, **options) for name in names}
    scored = pd.concat(parts.values(), ignore_index=True)
    if len(parts) > 1:
        scored.insert(0, "model", [name for name, part in parts.items() for _ in range(len(part))])
    about = [part.attrs["surprisal"] for part in parts.values()]
    if out is None:
        shown = scored.drop(columns=["space_before", "space_after"], errors="ignore")
        say(shown.to_string(index=False, float_format="{:.3f}".format))
    else:
        write_table(scored, out, index=False, spreadsheet=spreadsheet)
        described = json.dumps(about if len(about) > 1 else about[0], indent=2)
        with data.atomic_write(out.with_name(f"{out.name}.json")) as part:
            part.write_text(described, encoding="utf-8")
        n_texts = scored["text_id"].nunique()
        say(f"{len(scored)} {options['unit']}s of {n_texts} texts: {out}")
    for one in about:
        say("; ".join(f"{option}={value}" for option, value in one.items()), err=True)
    if "reason" in scored:
        known = np.isfinite(scored["surprisal_bits"])
        what = known.map({False: "have no finite value: ", True: "are scored, but: "})
        flaws = (what + scored["reason"])[scored["reason"] != ""]
        for flaw, count in flaws.value_counts().items():
            say(f"psychlm: {count} {options['unit']}s {flaw}", err=True)


@main.command()
@click.argument("source", metavar="ITEMS|DATASET")
@click.option("--model", "models", multiple=True, required=True, help="A folder or hub name.")
@choice_option(
    "--normalise", "sum token character byte unconditional", "sum", "How choices are scored."
)
@click.option(
    "--prompt",
    default="auto",
    show_default=True,
    help="auto, question, nli, binary nli, sentiment, continuation, or a text with {prompt}.",
)
@click.option("--encoding", help="Of a text file; found unless given.")
@click.option("--bos", default="auto", help="A token before it, or 'none'.")
@click.option("--out", type=FILE, help="Write the responses, models x items.")
@click.option("--logprobs", type=FILE, help="Write each choice's log-probability.")
@device_option
@no_cache_option
@spreadsheet_option
def responses(source: str, models: tuple[str, ...], spreadsheet: bool, **options: Any) -> None:
    """Let models answer items, and grade them.

    Items are a dataset (`psychlm data list`), or a file in the layout of any bank that
    psychlm.corpora.read_items reads. Results are cached: an interrupted run resumes.
    """
    from psychlm import corpora, lm

    outputs = [options.pop("out"), options.pop("logprobs")]
    for out, other in zip(outputs, outputs[::-1], strict=True):
        check_out(out, source, *([other] if other else []))
    items = corpora.read_items(source, encoding=options.pop("encoding"))
    if "recognised" in items.attrs:
        say(f"psychlm: {items.attrs['recognised']}", err=True)
    options |= {"cache": not options.pop("no_cache"), "progress": sys.stderr.isatty()}
    if options["bos"] == "none":
        options["bos"] = None
    if "{" in options["prompt"]:  # a shell writes a new line as \\n
        options["prompt"] = lm.Prompt(options["prompt"].replace("\\n", "\n"))
    graded = lm.evaluate(items, {name: name for name in models}, **options)
    for table, out in zip((graded.responses, graded.logprobs), outputs, strict=True):
        if out is not None:
            write_table(table, out, index=True, spreadsheet=spreadsheet)
    chance = (1 / items["choices"].map(len)).mean()
    for person, row in graded.responses.iterrows():
        say(f"{person}: {row.mean():.3f} of {len(row)} items right (chance: {chance:.3f})")
    for reason, count in items.attrs.get("left_out", {}).items():
        say(f"psychlm: {count} items were left out: {reason}", err=True)
    cut = graded.persons["truncated"]
    for person, count in cut[cut > 0].items():
        say(f"psychlm: {count} prompts were cut to fit {person}", err=True)


if __name__ == "__main__":
    main(prog_name="psychlm")
