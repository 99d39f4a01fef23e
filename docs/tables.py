"""Write the tables of the documentation: ``python docs/tables.py PAGE ...``.

``results`` writes docs/results.md from the reports at hand, the notebooks' verdicts and how many
published numbers came out again, and puts the sentences of the verdicts into README's table;
``speed`` lists in docs/speed.md what ``make bench`` left in reports/bench/, and ``on_a_cluster``
computes from it what large jobs cost; ``your_reading_experiment`` and ``your_test`` list formats
and options there.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from psychlm import data, report, site

# names of benchmarks that measure another program, or work that no program could leave out
PEERS = re.compile("limit|mirt|girth|minicons|harness|pygam_|bam_|lme4_")
# sums and differences of a module's rows: name, rows that count, and whose time it is compared with
DERIVED = {
    "irt": (
        "standard errors alone[1000x100000]",
        {"psychlm[1000x100000-with-errors]": 1, "psychlm[1000x100000-estimates]": -1},
        "",
    ),
}
ELSEWHERE = ("growth", "device", "cluster", "gpu")  # modules with tables of their own
MAIN_JOBS = ["surprisal", "choices", "irt 2PL", "additive model", "reading-time sweep"]
MAIN_JOBS += ["crowd bag", "crowd lstm", "fine-tuning"]
ROW = re.compile(r"^\| `(\d\d_\w+)` \|(.*)\| (.*) \|$", flags=re.MULTILINE)  # of README's table
PAPERS = {
    "laverghetta2021": "Laverghetta et al. (2021)",
    "lalor2020": "Lalor (2020)",
    "comprehenotes": "Lalor (2020), chapter 7",
    "richardson2020": "Richardson & Sabharwal (2020)",
    "hao2020": "Hao et al. (2020)",
    "shen2022": "Shen & Kejriwal (2022)",
}


def verdicts(reports: Path) -> dict[str, dict[str, str]]:
    """Return the verdict of each complete report, by notebook."""
    found = filter(None, map(site.read_report, site.report_files(reports)))
    return {
        r["notebook"]: r["verdict"] for r in found if r["status"] == "complete" and r["verdict"]
    }


def verdict_table(by_notebook: dict[str, dict[str, str]]) -> str:
    """Return a table of the notebooks' verdicts.

    >>> parts = {"sentence": "Yes.", "support": "r = 0.5.", "outcome": "partly"}
    >>> print(verdict_table({"10_a": parts | {"rests_on": "people"}}))
    | notebook | verdict | in numbers | outcome | rests on |
    | --- | --- | --- | --- | --- |
    | `10_a` | Yes. | r = 0.5. | partly | people |
    """
    lines = ["| notebook | verdict | in numbers | outcome | rests on |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for notebook, verdict in by_notebook.items():
        outcome = f"{verdict['outcome']} {verdict.get('models') or ''}"
        texts = [verdict["sentence"], verdict["support"], outcome, verdict["rests_on"]]
        cells = [" ".join(text.replace("|", "\\|").split()) for text in texts]
        lines.append(f"| `{notebook}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def seed_table(runs: pd.DataFrame) -> str:
    """Return a table of the verdicts that notebooks give under several seeds, and how often.

    >>> runs = pd.DataFrame({"notebook": "10_a", "profile": "quick", "seed": [1, 2, 3]})
    >>> print(seed_table(runs.assign(verdict=["Yes.", "No.", "Yes."])))
    | notebook | profile | seeds | verdicts |
    | --- | --- | ---: | --- |
    | `10_a` | quick | 3 | Yes. (2) No. (1) |
    """
    lines = ["| notebook | profile | seeds | verdicts |", "| --- | --- | ---: | --- |"]
    for (notebook, profile), group in runs.groupby(["notebook", "profile"]):
        counts = group["verdict"].value_counts()
        said = " ".join(f"{verdict} ({n})" for verdict, n in counts.items())
        lines.append(f"| `{notebook}` | {profile} | {len(group)} | {said} |")
    return "\n".join(lines)


def readme(text: str, by_notebook: dict[str, dict[str, str]]) -> str:
    """Return README with the sentence of each verdict in its table; rows without one stay.

    >>> print(readme("| `10_a` | Hao et al. | old |", {"10_a": {"sentence": "Yes."}}))
    | `10_a` | Hao et al. | Yes. |
    """

    def row(match: re.Match[str]) -> str:
        notebook, paper, sentence = match.groups()
        if notebook in by_notebook:
            sentence = " ".join(by_notebook[notebook]["sentence"].replace("|", "\\|").split())
        return f"| `{notebook}` |{paper}| {sentence} |"

    return ROW.sub(row, text)


def results(reports: Path) -> str:
    """Return three tables: verdicts, numbers of the five papers, numbers of programs and cards."""
    numbers = site.gather_numbers(reports)
    own_fit = numbers.loc[numbers["key"] == "laverghetta2021.table3_n_equal.own", "value"].max()
    cells = site.printed_cells(numbers)
    parts = cells["key"].str.split(".")
    cells = cells.assign(source=parts.str[0], part=parts.str[1].fillna(""))
    lines = ["## What the notebooks find", "", verdict_table(verdicts(reports)), ""]
    seeds = pd.read_csv(Path(__file__).parents[1] / "data" / "facts" / "verdicts_by_seed.csv")
    lines += ["## The same under other seeds", "", seed_table(seeds), ""]
    for column, rows in cells.groupby("column")[list(cells)]:
        by_paper = rows.groupby("source")["agrees"]
        each = [
            f"{PAPERS[source]} {group.sum()} of {len(group)}"
            for source, group in by_paper
            if source in PAPERS
        ]
        counted = "; ".join([f"{rows['agrees'].sum()} of {len(rows)} cells agree", *each]) + "."
        by_ltm = rows.loc[rows["part"] == "table3_ltm", "agrees"]  # Laverghetta's Table 3
        if len(by_ltm):
            counted += f" {by_ltm.sum()} of the {len(by_ltm)} cells of\nLaverghetta's Table 3 "
            counted += (
                f"agree through stored difficulties of R's ltm, by our own fit {own_fit:.0f}."
            )
        lines += [f"## {str(column).capitalize()}", "", counted, ""]
        lines += ["| source | table | cells | agree | largest difference |"]
        lines += ["| --- | --- | ---: | ---: | ---: |"]
        for (source, part), group in rows.groupby(["source", "part"], sort=True):
            largest = (group["value"] - group["published_value"]).abs().max()
            name = PAPERS.get(source, source)
            lines.append(
                f"| {name} | {report.key_label(part)} | {len(group)} | {group['agrees'].sum()} "
                f"| {largest:.2g} |"
            )
        lines.append("")
    return "\n".join(lines)


def speed(folder: Path) -> str:
    """Return a table of all benchmarks, each beside the limit or the peers of its group.

    A group's limits and peers have their name in ``PEERS``; one with a size in brackets, as
    ``girth[1000x50]``, is compared with the rows of that size. The ratio is its time by ours.
    """
    lines = ["| module | benchmark | seconds | times faster than | peak memory, MB | machine |"]
    lines += ["| --- | --- | ---: | --- | ---: | --- |"]
    for file in sorted(folder.glob("[!.]*.json")):
        if file.stem in ELSEWHERE:
            continue
        content = json.loads(file.read_text(encoding="utf-8"))
        machine = content.get("machine") or {}
        place = f"{machine.get('processor', '')}, {machine.get('cores', '?')} cores"
        rows = content["benchmarks"]
        names = [row["name"].removeprefix("test_").replace("|", "/") for row in rows]
        peers = {name: row for name, row in zip(names, rows, strict=True) if PEERS.search(name)}
        for name, row in zip(names, rows, strict=True):
            size, beside = name.partition("[")[2].rstrip("]"), []
            for other, peer in peers.items() if name not in peers else ():
                # "bam_native" is the work of "native" by bam; "1000x50" that of "1000x50-estimates"
                program, _, peer_size = other.rstrip("]").partition("[")
                if by := re.match("(pygam|bam|lme4)_", peer_size):
                    program, peer_size = by[1], peer_size.removeprefix(by[0])
                same_work = peer.get("group") and peer["group"] == row.get("group")
                if same_work and peer_size in ("", size, size.partition("-")[0]):
                    beside.append(f"{program}: {peer['seconds'] / row['seconds']:.2g}")
            ratios = {k: v for k, v in row.items() if k.startswith("times faster than")}
            beside += [f"{k.split(' than ')[1]}: {v:.2g}" for k, v in ratios.items()]
            cells = [f"`{file.stem}`", name, f"{row['seconds']:.3g}", "; ".join(beside)]
            cells.append(f"{row['peak_mb']:,}" if "peak_mb" in row else "")
            lines.append("| " + " | ".join([*cells, f"{place}, {content.get('date', '')}"]) + " |")
        if file.stem in DERIVED:
            name, parts, other = DERIVED[file.stem]
            seconds = {name: row["seconds"] for name, row in zip(names, rows, strict=True)}
            total = sum(sign * seconds[part] for part, sign in parts.items())
            beside = f"{other}: {seconds[other] / total:.2g}" if other else ""
            cells = [f"`{file.stem}`", name, f"{total:.3g}", beside, ""]
            lines.append("| " + " | ".join([*cells, f"{place}, {content.get('date', '')}"]) + " |")
    parts = [growth(folder), on_a_device(folder), on_a_gpu(folder)]
    return "\n\n".join(["\n".join(lines), *parts]) + "\n"


def benchmarks(folder: Path, module: str) -> tuple[list[dict[str, Any]], str]:
    """Return what a module measured, and a sentence that says where and when."""
    content = json.loads((folder / f"{module}.json").read_text(encoding="utf-8"))
    machine = f"{content['machine']['processor']}, {content['machine']['cores']} cores"
    return content["benchmarks"], f"Measured on {machine}, {content['date']}."


def largest_decade(sizes: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Return a and b of values = a sizes^b, by least squares of logarithms from a tenth of the
    largest size on.

    >>> largest_decade(np.array([1.0, 10, 30, 100]), np.array([9.0, 20, 60, 200]))
    (2.0, 1.0)
    """
    last = sizes >= sizes.max() / 10
    b, log_a = np.polyfit(np.log(sizes[last]), np.log(values[last]), 1)
    return round(float(np.exp(log_a)), 12), round(float(b), 12)


def growth(folder: Path) -> str:
    """Return a table of how time and memory of jobs grow, and the sizes where one machine ends."""
    rows, where = benchmarks(folder, "growth")
    lines = ["## Growth", "", where, ""]
    lines += [
        "| job | sizes | seconds | exponent | memory, MB | exponent | a day of one core | 16 GB |"
    ]
    lines += ["| --- | --- | --- | ---: | --- | ---: | ---: | ---: |"]
    for job in dict.fromkeys(row["job"] for row in rows):
        size, seconds, memory = (
            np.array([row[name] for row in rows if row["job"] == job], float)
            for name in ("size", "seconds", "memory_mb")
        )
        unit = next(row["unit"] for row in rows if row["job"] == job)
        (a, b), (_, d) = largest_decade(size, seconds), largest_decade(size, memory)
        last = size >= size.max() / 10
        mb_each, mb_fixed = np.polyfit(size[last], memory[last], 1)
        ends = (86_400 / a) ** (1 / b), (16 * 1024 - mb_fixed) / mb_each
        cells = [job, f"{size[0]:,.0f} to {size[-1]:,.0f} {unit}"]
        cells += [f"{seconds[0]:.2g} to {seconds[-1]:.2g}", f"{b:.2f}"]
        cells += [f"{memory[0]:.0f} to {memory[-1]:,.0f}", f"{d:.2f}"]
        cells += [f"**{end:.0e}**" if end == min(ends) else f"{end:.0e}" for end in ends]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_growth(folder: Path, file: Path) -> None:
    """Draw time and memory of the jobs against size."""
    import matplotlib.pyplot as plt

    rows, _ = benchmarks(folder, "growth")
    jobs = list(dict.fromkeys((row["job"], row["unit"]) for row in rows))
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharex=True, layout="constrained")
    panels = {"seconds": "processor seconds", "memory_mb": "memory above the start, MB"}
    for ax, (name, label) in zip(axes, panels.items(), strict=True):
        for (job, unit), marker in zip(jobs, "osv^DPX", strict=True):
            points = [(row["size"], row[name]) for row in rows if row["job"] == job]
            points = [point for point in points if point[1] >= 0.01]
            ax.loglog(*zip(*points, strict=True), marker=marker, ms=4, label=f"{job} ({unit})")
        ax.set(xlabel="size", ylabel=label)
        ax.grid(alpha=0.3)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, fontsize=8)
    with data.atomic_write(file) as part:
        figure.savefig(part, format="png", dpi=100)


def on_a_device(folder: Path) -> str:
    """Return a table of what jobs launch on a device, move there and wait for."""
    rows, _ = benchmarks(folder, "device")
    paths = rows[0]["paths"]
    lines = ["## On a device", "", "| job, in small | launches | MB moved | waits |"]
    lines += ["| --- | ---: | ---: | ---: |"]
    for job in MAIN_JOBS:
        cost = paths[job]
        megabytes = f"{cost['bytes'] / 1e6:,.1f}"
        lines.append(f"| {job} | {cost['launches']:,} | {megabytes} | {cost['waits']:,} |")
    return "\n".join(lines)


def on_a_gpu(folder: Path) -> str:
    """Return a table of what ``make gpu`` measured, or that no GPU was."""
    title = "## On a GPU\n\n"
    file = folder / "gpu.json"
    if not file.exists():
        return title + "None was measured so far; `make gpu` measures one."
    content = json.loads(file.read_text(encoding="utf-8"))
    found = content["checks"]
    machine = found["machine"]
    cases = {name: row for name, row in found.items() if name.startswith("agrees: ")}
    apart = [name.removeprefix("agrees: ") for name, row in cases.items() if not row.get("agrees")]
    where = f"Measured on {machine['device']} with {machine['processor']}, {content['date']}"
    counted = f"{len(cases) - len(apart)} of {len(cases)} cases agree with the CPU"
    lines = [f"{where}. {counted}{': not ' * bool(apart)}{', '.join(apart)}.", ""]
    lines += ["| job | size | seconds | times its limit | peak memory, GB |"]
    lines[-1] += " times faster than the CPU on two threads |"
    lines += ["| --- | --- | ---: | --- | ---: | --- |"]
    for name, row in found.items():
        if not name.startswith("speed: "):
            continue
        if "limits" not in row:
            lines.append(f"| {name[7:]} | {row.get('error', 'cut off')} | | | | |")
            continue
        size, of_cpu = (
            f"{' x '.join(f'{n:,}' for n in row[key])} {row['unit']}"
            for key in ("size", "cpu_size")
        )
        limit = max(row["limits"], key=lambda what: row["limits"][what])
        beside = f"{row['seconds'] / row['limits'][limit]:.2g} ({limit})"
        faster = f"{row['cpu_seconds'] / row['seconds_at_cpu_size']:.2g} ({of_cpu})"
        memory = f"{row['peak_gb']:.1f}" if "peak_gb" in row else ""
        lines.append(
            f"| {name[7:]} | {size} | {row['seconds']:.3g} | {beside} | {memory} | {faster} |"
        )
    return title + "\n".join(lines)


def workers(folder: Path) -> str:
    """Return a table of what a cluster of processes of one machine costs."""
    rows, where = benchmarks(folder, "cluster")
    lines = ["## What a cluster costs", "", where, ""]
    lines += ["| job | processor seconds without cluster | efficiency, 2 processes | 4 "]
    lines[-1] += "| share of processor time, 2 | 4 | other load, processes |"
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        if (job := re.search(r"efficiency\[(.*)\]", row["name"])) is not None:
            names = ("efficiency, 2", "efficiency, 4", "share of cpu, 2", "share of cpu, 4")
            shares = " | ".join(f"{row[name]:.2f}" for name in names)
            lines.append(f"| {job[1]} | {row['cpu_s']:.2g} | {shares} | {row['load']:.0f} |")
    return "\n".join(lines)


def costs(folder: Path) -> str:
    """Return a table of the core hours of large jobs, from the rates of benchmarks.

    A rate is the amount of work of a benchmark (the product of the fields named) by its seconds.
    """
    gpt2 = "words under a model of GPT-2 small's size"
    trained = "texts that {} read in training, over all models and epochs"
    fits = "additive models of {readings:,} readings"
    # module, benchmark, fields whose product is its amount of work, unit, example, its amount
    examples = [
        ("surprisal", "documents[pimentel-meister]", ["words"], gpt2)
        + ("100 such models, 100,000 words", 100 * 100_000),
        ("crowd", "crowd_against_a_loop[bag]", ["n_models", "n_texts"], trained.format("bags"))
        + ("10,000 bags of words, 7,000 texts, 20 epochs", 10_000 * 7_000 * 20),
        ("crowd", "crowd_against_a_loop[lstm]", ["n_models", "n_texts"], trained.format("LSTMs"))
        + ("10,000 LSTMs, 7,000 texts, 20 epochs", 10_000 * 7_000 * 20),
        ("sweep", "sweep_beside_bam[1000]", ["fits"], fits)
        + ("10,000 models, three measures", 10_000 * 3),
        ("sweep", "sweep_with_heldout_gains", ["fits"], fits + ", with ten folds")
        + ("10,000 models, three measures", 10_000 * 3),
    ]
    lines = ["| work | per core second | example | core hours |", "| --- | ---: | --- | ---: |"]
    for module, name, fields, unit, example, amount in examples:
        content = json.loads((folder / f"{module}.json").read_text(encoding="utf-8"))
        row = {row["name"]: row for row in content["benchmarks"]}[f"test_{name}"]
        # processor seconds where a benchmark's own are wall seconds of several threads
        rate = math.prod(row[field] for field in fields) / row.get("cpu_seconds", row["seconds"])
        hours = amount / rate / 3600
        lines.append(f"| {unit.format(**row)} | {rate:,.3g} | {example} | {hours:,.2g} |")
    return "\n".join([*lines, "", workers(folder)]) + "\n"


def reading_formats() -> str:
    """Return tables of the formats of reading studies, and of options that tell columns."""
    from psychlm import roles
    from psychlm.corpora import _reading_formats

    return formats(_reading_formats.FORMATS) + options_of(roles.READINGS)


def answer_formats() -> str:
    """Return tables of the formats of answers and logs, and of options that tell columns."""
    from psychlm import roles
    from psychlm.corpora import _answer_formats, _logs

    return formats([*_answer_formats.FORMATS, *_logs.FORMATS]) + options_of(roles.ANSWERS)


def formats(entries: list[Any]) -> str:
    """Return a table of formats."""
    lines = ["| format | recognised by | what it never does |", "| --- | --- | --- |"]
    lines += [f"| {form.name} | {form.recognised_by} | {form.never} |" for form in entries]
    return "\n".join(lines) + "\n\n"


def options_of(names: list[str]) -> str:
    """Return the options that tell columns, in Python and in the shell."""
    from psychlm import roles

    lines = ["| option | in the shell | what it tells |", "| --- | --- | --- |"]
    for name in names:
        metavar, told = roles.OPTIONS[name]
        lines.append(f"| `{name}` | `--{name.replace('_', '-')} {metavar}` | {told} |")
    return "\n".join(lines) + "\n"


PAGES_OF_FORMATS = {
    "your_reading_experiment": reading_formats,
    "your_test": answer_formats,
}


def main() -> None:
    """Write the page that is named on the command line."""
    root, mark = data.root(), "<!-- table -->\n"
    for page in sys.argv[1:]:
        reports = root / "reports"
        if page == "results":
            made = results(reports)
        elif page in PAGES_OF_FORMATS:
            made = PAGES_OF_FORMATS[page]()
        else:
            made = {"speed": speed, "on_a_cluster": costs}[page](reports / "bench")
        file = root / "docs" / f"{page}.md"
        head = file.read_text(encoding="utf-8").partition(mark)[0]
        with data.atomic_write(file) as part:
            part.write_text(head + mark + made, encoding="utf-8")
        if page == "speed":
            draw_growth(reports / "bench", root / "docs" / "growth.png")
        if page == "results":
            table = root / "README.md"
            text = readme(table.read_text(encoding="utf-8"), verdicts(reports))
            with data.atomic_write(table) as part:
                part.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
