"""Which columns of a table of answers are items, and what their answers are: numbers and grades.

Which column names persons is decided in ``answers._of_wide`` and ``answers._of_long``.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from unicodedata import normalize

import numpy as np
import pandas as pd

from psychlm.corpora._answer_formats import EMPTY, MARKS, names_of
from psychlm.corpora._formats import GRADES, USUAL, WRONG, find, plain
from psychlm.corpora._sniff import numbers_among, numbers_of
from psychlm.frames import FrameError, format_names, is_numeric, refuse

# columns that describe persons or their session, whatever their values, without blanks and marks
DESCRIBE = """age birthyear born class cohort complete completed condition country date duration
education email end enddate ethnicity female file finished form gender grade group gruppe ip
ipaddress klasse language level major male mark marks name nationality points progress race region
school score section sex start startdate state status sum sumscore time timestamp total treatment
treated version year""".split()
A_SUM = "the sum or share of the others"
NUMBERS_REPEATS = (
    r"(?i)file|.*(event|wave|visit|session|occasion|attempt|instance|messzeitpunkt|welle).*"
)
# behind a number the mark of an item that is worded the other way: "sat2_r", "sat5R"
NUMBER_OF_ITEM = r"(?i)\W*\d+(?:[\W_]*(?:r|rev|reversed?|inv|neg|rec|recoded))?\W*$"
PERCENT = r" *[\d.,]+ *% *"
DATE = r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}.*"
CODES = {7, 8, 9, 77, 88, 98, 99, 777, 888, 998, 999}  # usual ones of missing answers
CATEGORIES = 12  # different whole numbers that an item has at most


def as_text(values: pd.Series) -> pd.Series:
    """Return answers as composed text: "A" for "(A)", "2" for 2.0, and NaN for empty cells."""

    def text_of(one: object) -> object:
        text = normalize("NFC", str(one).strip())
        text = re.sub(r"^[(\[]?([^\W_])[)\].:]$", r"\1", text)
        try:
            number = float(text)
        except ValueError:
            return text or np.nan
        return str(int(number) if number.is_integer() else number)

    different = pd.Series(values.dropna().unique(), dtype=object)
    text = dict(zip(different, different.map(text_of), strict=True))
    return values.astype(object).map(text, na_action="ignore")


def is_date(cells: pd.Series) -> bool:
    """Return whether all cells of a column that are not empty are dates."""
    return bool(cells.dropna().astype(str).str.fullmatch(DATE).all())


def of_long_table(table: pd.DataFrame, person: str) -> tuple[list[str], str]:
    """Return what may be the columns of items, the likeliest first, and of answers, "" if none.

    A column of items has each of its values once a person, and most of them for several persons.

    >>> table = pd.DataFrame({"who": [*"aabb"], "task": [*"xyxy"], "ok": [1, 1, 0, 1]})
    >>> of_long_table(table, "who")
    (['task'], 'ok')
    """
    numbering = [n for n in table if re.fullmatch(NUMBERS_REPEATS, n)]
    others = [n for n in table if n != person and n not in numbering]
    others = [
        n for n in others if not is_date(table[n]) and plain(n) not in USUAL["repeat"].split()
    ]
    items: list[str] = []
    for name in others:
        rows = table[[person, name]].dropna()
        is_shared = 2 * rows[name].nunique() <= len(rows) and rows[name].nunique() > 1
        if is_shared and plain(name) not in DESCRIBE and not rows.duplicated().any():
            items.append(name)
    usual = find(table[items], names_of("item"))
    items.sort(key=lambda name: name != usual)
    answers = [n for n in others if n not in items[:1] and table[n].nunique() > 1]
    is_grade = {
        n: as_text(table[n]).dropna().str.casefold().isin([*GRADES, "0", "1"]) for n in answers
    }
    graded = [n for n in answers if is_grade[n].all()]
    numbers = [n for n in answers if is_numeric(numbers_of(table[n]))]
    named = find(table[answers], names_of("answer"))
    likeliest = [*filter(None, [named]), *graded, *numbers, *answers]
    return items, likeliest[0] if likeliest else ""


def with_missing(
    table: pd.DataFrame,
    names: Sequence[str],
    missing: Sequence[object],
    options: Set[str] = frozenset(),
) -> tuple[pd.DataFrame, dict[str, pd.Series]]:
    """Return a table whose marks and codes of missing answers are missing, and these by column.

    Words for missing that are ``options``, the right answers of a key, are answers.
    """
    codes = set(as_text(pd.Series([*missing], dtype=object)))
    marks = {*MARKS, *EMPTY} - options
    found: dict[str, pd.Series] = {}
    columns: dict[str, pd.Series] = {}
    for name in names:
        cells = table[name]
        if is_numeric(cells) and not codes:
            continue
        text = as_text(cells)
        is_missing = text.isin(codes if is_numeric(cells) else codes | marks)
        if is_missing.any():
            columns[name] = cells.mask(is_missing)
            found[name] = text[is_missing]
    return table.assign(**columns), found


def by_number(key: pd.Series, header: Sequence[str], notes: list[str]) -> pd.Series:
    """Return a key whose items are named as those of a file without names of items, by number.

    >>> by_number(pd.Series({"I1": "A", "I2": "B"}), ["item 1", "item 2"], []).to_dict()
    {'item 1': 'A', 'item 2': 'B'}
    """
    numbers = [re.findall(r"\d+", name) for name in key.index]
    names = [f"item {int(number[0])}" if len(number) == 1 else "" for number in numbers]
    is_other = not {*key.index} & {*header} and len({*names}) == len(names)
    if not is_other or not {*names} <= {*header}:
        return key
    notes.append(f"the key's items are those of the same number: {key.index[0]!r} is {names[0]!r}")
    return key.set_axis(names)


def words_in(key: pd.Series | None, missing: Sequence[object], notes: list[str]) -> set[str]:
    """Return the words for missing, such as NA, that are right answers of a key, and warn of them.

    Where they are told to be ``missing``, items with this key have none.
    """
    if key is None:
        return set()
    if missing:
        key[key.isin([*map(str, missing)])] = np.nan
    words = {*key.dropna()} & {*EMPTY}
    if words:
        listed = ",".join(sorted(words))
        items = format_names(key.index[key.isin(words)])
        said = f"{listed} is an answer, since the key has it for {items}"
        notes.append(f"{said}; missing={listed} takes it for a missing one")
        warnings.warn(notes[-1], stacklevel=3)
    return words


def counts_of_missing(found: Mapping[str, pd.Series], items: Sequence[str]) -> list[str]:
    """Return a note on how many answers to items each mark or code of missing ones stands for."""
    counts = Counter(mark for name in items for mark in found.get(name, ()))
    said = [f"{n} {mark!r}" for mark, n in sorted(counts.items()) if mark not in ("", "NA")]
    return [f"missing: {', '.join(said)}"] if said else []


def numbers_and_words(
    table: pd.DataFrame, names: Sequence[str], labels: Mapping[str, float], notes: list[str]
) -> tuple[pd.DataFrame, list[str], dict[str, pd.Series]]:
    """Return the columns most of whose cells are numbers, the logical ones, and those of text."""
    numeric: dict[str, pd.Series] = {}
    logical: list[str] = []
    words: dict[str, pd.Series] = {}
    no_numbers: Counter[str] = Counter()
    texts = {text for name in names if not is_numeric(table[name]) for text in table[name].unique()}
    said = {str(text).strip().casefold() for text in texts}
    # "right" is the answer of a hand, too, where nobody is wrong
    grades = GRADES if said & {*WRONG} else {"true": 1.0, "false": 0.0}
    number_of = {str(label).strip().casefold(): number for label, number in labels.items()}
    has_answers = table.notna().any()
    for name in names:
        column = table[name]
        if not has_answers[name]:
            continue
        if not is_numeric(column) or column.dtype == bool:
            cells = column.astype("str").str.strip().str.casefold().where(column.notna())
            if cells.dropna().isin([*grades]).all():
                logical.append(name)
                column = cells.map(grades)
            elif cells.isin(list(number_of)).any():
                column = cells.map(number_of).fillna(pd.to_numeric(cells, errors="coerce"))
                unknown = table[name][column.isna() & cells.notna()].unique()
                mark = ",".join(map(str, unknown))
                refuse(
                    "answers",
                    unknown,
                    f"of {name!r} have no number in labels=; add them, or missing={mark!r}",
                )
        column = numbers_of(column)
        if not is_numeric(column):
            parsed = pd.to_numeric(column, errors="coerce")
            with contextlib.suppress(FrameError):  # "0,5" beside texts, where it is clear
                parsed = numbers_among(column)[0]
            if parsed.count() <= column.count() / 2:
                words[name] = table[name]
                continue
            no_numbers.update(column[parsed.isna() & column.notna()].astype(str))
            column = parsed
        if column.notna().any():
            numeric[name] = column.astype(float)
    if no_numbers:
        counted = ", ".join(f"{n} {text!r}" for text, n in no_numbers.most_common(8))
        notes.append(f"no numbers, and missing: {counted}")
        warnings.warn(f"cells of numbers hold text and are missing: {counted}", stacklevel=2)
    return pd.DataFrame(numeric, index=table.index), logical, words


def n_values_of(column: pd.Series) -> str:
    """Return in words how many different values a column has."""
    return f"{column.nunique()} value{'s' if column.nunique() != 1 else ''}"


def items_among(numbers: pd.DataFrame, certain: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the columns of numbers that are items, and why each other one is none.

    Of columns that nobody named, those whose names say that they describe persons are none, and
    those whose values differ from what most have: other numbers than 0 and 1 beside items of 0 and
    1, but for points from 0 on, which may be halves and quarters; other whole numbers than those of
    most ratings. Where most names end in a number, a column of few values whose name does not is a
    group.
    """
    if not len(numbers.columns):
        return [], {}
    low = numbers.min()
    high = numbers.max()
    n_values = numbers.nunique()
    stems = pd.Series({n: re.sub(NUMBER_OF_ITEM, "", str(n)) for n in numbers}, dtype=str)
    # points of a series of items that starts at 0 may be quarters, other numbers are whole
    steps_of_one = low.groupby(stems).transform("min").eq(0).map({True: 4, False: 1})
    whole = (numbers * steps_of_one % 1 == 0).where(numbers.notna(), True).all()
    n_of_stem = stems.groupby(stems).transform("size")
    is_numbered = (stems != stems.index.astype(str)) & n_of_stem.gt(2)
    most_numbered = is_numbered.mean() >= 0.5
    why: dict[str, str] = {}
    for name in numbers:
        words = re.split(r"[\W_]+", str(name).lower())
        if not is_numbered[name] and {"".join(words), words[0], words[-1]} & set(DESCRIBE):
            why[name] = n_values_of(numbers[name])
        elif not whole[name] or n_values[name] > CATEGORIES:
            why[name] = f"{n_values_of(numbers[name])}, {span(numbers[name])}"
    left = [name for name in numbers if name not in why]
    binary = [name for name in left if low[name] >= 0 and high[name] <= 1]
    others = [name for name in left if not (most_numbered and is_numbered[name])]
    if 2 * len(binary) >= len(left):
        for name in left:
            # points of essay1 and essay2 are items beside q1, q2, ..., a column "site" is a group
            is_other = most_numbered and not is_numbered[name]
            is_group = name in binary or n_of_stem[name] == 1 or stems[name] == name
            if is_other and is_group:
                why[name] = f"{span(numbers[name])} under another name than most"
            elif name not in binary and low[name] != 0:
                why[name] = span(numbers[name])
    else:
        # the ends of the scale, which a fifth of the items reach
        rated = [name for name in left if is_numbered[name]] if most_numbered else left
        rare = len(rated) // 5 if len(rated) > 2 else 0
        highest = sorted(high[rated], reverse=True)[rare] if rated else np.inf
        lowest = sorted(low[rated])[rare] if rated else -np.inf
        for name in others:
            two_of_many = n_values[name] == 2 and highest - lowest > 2 and len(numbers) >= 30
            outside = low[name] < lowest or high[name] > highest
            outside |= n_values[name] == 1 and len(numbers) >= 20
            if most_numbered or outside or two_of_many:
                why[name] = span(numbers[name])
    items = [name for name in numbers if name not in why or name in certain]
    # the sum, share or percentage of the other items, maybe rounded, is no further item
    further = [*why, *(name for name in others if name in items)]
    for name in [name for name in further if n_values[name] > 2]:
        sums = numbers[items].drop(columns=name, errors="ignore").sum(axis=1)
        total = numbers[name].sum()
        is_share = np.allclose(numbers[name] * sums.sum(), sums * total, rtol=0.02)
        if len(items) > 3 and sums.any() and is_share:
            items = [one for one in items if one != name]
            why[name] = A_SUM
    return items, {name: reason for name, reason in why.items() if name not in items}


def span(values: pd.Series) -> str:
    """Return the range of a column's numbers, for messages."""
    return f"{values.min():g} to {values.max():g}"


def codes_among(responses: pd.DataFrame) -> list[float]:
    """Return usual codes of missing answers that lie apart from the other values of their items.

    They do so in several items, and in most of those that have them. Below 10 they are beyond a
    scale from 0 or 1 without gaps: points of an essay may be 2, 5 and 9.

    >>> codes_among(pd.DataFrame({"q1": [0, 1, 9], "q2": [1, 0, 9], "essay": [2, 5, 9]}))
    [9.0]
    """
    values_of = [set(map(float, responses[name].dropna().unique())) for name in responses]
    everywhere = set().union(*values_of)
    n_items: Counter[float] = Counter()
    n_apart: Counter[float] = Counter()
    for values in values_of:
        codes = sorted(values & CODES)
        scale = sorted(values - CODES)
        n_items.update(codes)
        if not scale:
            continue
        highest = scale[-1]
        without_gap = scale[0] <= 1 and len(scale) > highest - scale[0]
        for code in codes:
            is_far = code > highest + 2 or (code == highest + 2 and code - 1 not in everywhere)
            if is_far and (without_gap if code < 10 else highest <= CATEGORIES):
                n_apart[code] += 1
            else:
                highest = max(highest, code)
    return sorted(code for code, n in n_apart.items() if n > 1 and 2 * n > n_items[code])


def warn_of_codes(responses: pd.DataFrame, told: bool, notes: list[str]) -> None:
    """Warn of whole numbers that lie apart from the others, as codes of missing answers do.

    Those below 0 and usual codes are refused unless what is missing was ``told``.
    """
    if (codes := codes_among(responses)) and not told:
        listed = ",".join(f"{code:g}" for code in codes)
        raise FrameError(
            f"answers {listed} lie apart from the other answers to their items, as codes of "
            f"missing answers do: missing={listed}; if they are scores, missing=NA reads them so"
        )
    values = np.sort(pd.unique(responses.to_numpy().ravel()))
    values = values[np.isfinite(values)]
    if len(values) < 3 or (values % 1).any():
        return
    # the longest run of neighbours is the scale
    runs = np.split(values, np.flatnonzero(np.diff(values) > 2) + 1)
    counts = responses.stack().value_counts()
    scale = max(runs, key=lambda run: counts.reindex(run).sum())
    apart = ",".join(f"{value:g}" for run in runs if run is not scale for value in run)
    if apart and not told and scale[0] >= 0 > values[0]:
        raise FrameError(
            f"answers {apart} lie apart from the scale, {scale[0]:g} to {scale[-1]:g}, as codes of "
            f"missing answers do; those that stand for missing answers: missing={apart}"
        )
    if apart:
        notes.append(
            f"values {apart} lie apart: if they stand for missing answers, missing={apart}"
        )
        warnings.warn(f"answers {apart} lie apart from the scale; see missing=", stacklevel=2)


def refuse_no_options(raw: pd.DataFrame, key: pd.Series, told: bool, notes: list[str]) -> None:
    """Refuse answers beside a key that are no option of any item, as codes of missing answers.

    They are numbers beside letters, letters beside numbers or far behind the key's, and usual codes
    apart from other numbers, in several items; if what is missing was ``told``, they are wrong, and
    noted.
    """
    right = key[raw.columns].astype(str)
    others: list[str] = []
    if right.str.fullmatch(r"[^\W\d_]([|,;/][^\W\d_])*").all():
        highest = max(filter(str.isalpha, "".join(right).upper()))
        far = chr(ord(highest) + 4) if "D" <= highest <= "H" else "Z"
        pattern = rf"\d+(\.\d+)?|[{far}-Z{far.lower()}-z?*#]"
    elif right.str.fullmatch(r"\d+").all():
        pattern = r"[^\W\d_]|[?*#]"
        others = [f"{code:g}" for code in codes_among(raw.apply(pd.to_numeric, errors="coerce"))]
    else:
        return
    is_code = raw.apply(
        lambda cells: cells.astype("str").str.fullmatch(pattern).eq(True) | cells.isin(others)
    )
    if is_code.any().sum() < min(2, len(raw.columns)):
        return
    counts = raw[is_code].stack().value_counts()
    codes = ",".join(sorted(counts.index))
    said = f"answers {codes} ({counts.sum()} in all) are no options as those of the key are"
    if not told:
        raise FrameError(
            f"{said}; where they stand for missing answers: missing={codes}; if they are wrong "
            "answers, missing=NA reads them so"
        )
    notes.append(f"{said}, and wrong")


def warn_of_names(responses: pd.DataFrame, turned: Sequence[str], notes: list[str]) -> None:
    """Note names of items that say that 1 is an error, or that number repeats of fewer items."""
    names = pd.Index(map(str, responses.columns))
    errors = names[names.str.contains(r"(?i)(?<![a-z])(?:errors?|fehler|incorrect|wrong)(?![a-z])")]
    if len(errors.difference(turned)):
        said = f"1 counts as right, also in {format_names(errors)}; if it is an error there, "
        notes.append(f"{said}reverse= names these items")
        warnings.warn(notes[-1], stacklevel=2)
    marked = names[names.str.contains(r"(?i)\d[\W_]*(?:r|rev|reversed?)\W*$")].difference(turned)
    if 0 < len(marked) < len(names) / 2:
        said = (
            f"{format_names(marked)} may be worded the other way; where they are not turned yet, "
        )
        notes.append(f"{said}reverse= names them")
    series = names.str.extract(r"(.+)[_.-](?:s|sample|run|rep|epoch|seed|try)(\d+)$")
    n_of_stem = series[0].value_counts()
    if series.notna().all(axis=None) and len(n_of_stem) > 1 and n_of_stem.min() > 1:
        notes.append(
            f"{names[0]!r} and {names[1]!r} are read as two items; if they are repeats of one, "
            "write a long table with the columns person, item, repeat and correct"
        )


def turn(responses: pd.DataFrame, reverse: Sequence[str], notes: list[str]) -> None:
    """Turn rated items in place: the ends of the scale together, less the answer."""
    unknown = [name for name in reverse if name not in responses]
    have = format_names(responses.columns, 12)
    refuse("columns", unknown, f"of reverse= are no items; items are {have}")
    rated = [name for name in responses if not responses[name].isin((0, 1, np.nan)).all()]
    of_scale = responses[rated or list(responses)]
    ends = of_scale.min(axis=None) + of_scale.max(axis=None)
    responses[list(reverse)] = ends - responses[list(reverse)]
    notes.append(f"turned: {', '.join(reverse)} ({ends:g} minus the answer)")


def needs_key(words: Mapping[str, pd.Series], header: Sequence[str]) -> str:
    """Return the message about columns of text that may be answers."""
    lists = [n for n, cells in words.items() if cells.dropna().str.match(r"[\[{]\W").all()]
    if lists:
        return (
            f"columns {format_names(lists)} hold lists or records in a cell; write one table with "
            "the columns person, item and correct, a row an answer"
        )
    # the texts that most of the columns share
    texts = [column.dropna().astype(str).str.strip() for column in words.values()]
    in_columns = Counter(text for column in texts for text in column.unique())
    most = max(in_columns.values())
    found = [text for text, n in in_columns.most_common() if n > most / 2][:8]
    percent = {
        n: x for n, x in words.items() if x.dropna().astype(str).str.fullmatch(PERCENT).all()
    }
    if 2 * len(percent) > len(words):
        first = next(iter(percent.values())).dropna().iloc[0]
        columns = format_names(percent)
        return (
            f"columns {columns} hold percentages such as {first!r}: write numbers without the sign"
        )
    # the numbers of "A1", "2 (rather)"; other labels have none that a program could know
    numbers = [re.findall(r"\d+", label) for label in found]
    is_numbered = all(len(one) == 1 for one in numbers)
    assigned = ",".join(
        f"{label}={number[0] if is_numbered else '?'}"
        for number, label in sorted(zip(numbers, found, strict=True))
    )
    return (
        f"columns {format_names(words)} hold text such as {found[0][:60]!r}: raw answers need a "
        f"key, the right answer of each item (key=); words that stand for numbers need labels=, as "
        f"labels='{assigned}'{'' if is_numbered else ' with a number for each ?'}; if these are "
        f"no answers, items= names those that are; the header is {format_names(header, 12)}"
    )


def in_case_of(key: pd.Series, raw: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Return raw answers whose letters are capital or small as those of the key, one a choice.

    >>> in_case_of(pd.Series({"q": "A"}), pd.DataFrame({"q": ["a", "b,C", "both"]}), []).q.tolist()
    ['A', 'B,C', 'both']
    """
    letters = r"[^\W\d_](\W+[^\W\d_])*"
    texts = key[raw.columns]
    named = texts.index[texts.str.fullmatch(letters) & (texts.str.isupper() | texts.str.islower())]
    changed = raw.copy()
    for name in named:
        alike = raw[name].str.upper() if key[name].isupper() else raw[name].str.lower()
        changed[name] = raw[name].mask(raw[name].str.fullmatch(letters).eq(True), alike)
    if n_changed := int((changed.ne(raw) & raw.notna()).to_numpy().sum()):
        notes.append(f"{n_changed} answers in small or capital letters count as those of the key")
    return changed


def _plain(answer: str) -> str:
    """Return a free answer without case, article, last mark and separators of thousands.

    >>> _plain("The Cat."), _plain("1,000")
    ('cat', '1000.0')
    """
    text = re.sub(r"^(an?|the)\s+(?=.)", "", answer.strip().rstrip(".!?").casefold())
    digits = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    return str(float(digits)) if re.fullmatch(r"-?\d+(\.\d+)?", digits) else text


def graded_by(raw: pd.DataFrame, key: pd.Series, notes: list[str]) -> pd.DataFrame:
    """Return raw answers as right (1), wrong (0) or NaN; note what the key allows.

    Of several right answers each is right, unless somebody chose all of them together: then they
    are one choice, in any order. Capital letters count where anybody's answer has them.
    """

    def parts_of(text: str) -> frozenset[str]:
        return frozenset(
            part for part in map(str.strip, re.split(r"[;|/]|,(?!\d{3}\b)", text)) if part
        )

    grades: dict[str, pd.Series] = {}
    several: list[str] = []
    folded: list[str] = []
    n_near = 0
    for name in raw.columns:
        answers = raw[name]
        right = {key[name]}
        chosen = answers.map(parts_of, na_action="ignore")
        all_chosen = chosen.map(parts_of(key[name]).__eq__, na_action="ignore").eq(True)
        if "|" not in key[name] and all_chosen.any():
            is_right = all_chosen
        else:
            if len(parts_of(key[name])) > 1:
                right = {*parts_of(key[name])}
                several.append(name)
            is_right = answers.isin(right)
        in_small = [one.casefold() for one in right]
        if not is_right.any() and answers.dropna().str.casefold().isin(in_small).any():
            folded.append(name)
            is_right = answers.str.casefold().isin(in_small)
        plain_of = {one: _plain(one) for one in answers.dropna().unique()}
        near = answers.map(plain_of).isin({_plain(one) for one in right})
        n_near += int((near & ~is_right).sum())
        grades[name] = is_right.astype(float).where(answers.notna())
    graded = pd.DataFrame(grades)
    if not graded.eq(1).any(axis=None):
        first = raw.columns[0]
        raise FrameError(
            f"nobody chose the right answer of any item: {first!r} has the key {key[first]!r} and "
            f"the answers {sorted(raw[first].dropna().unique())[:6]}"
        )
    if n_near:
        notes.append(
            f"{n_near} answers that are wrong differ from the key in letters' case, an article, a "
            "full stop or how a number is written only (a key may hold several, as Paris|paris)"
        )
    notes += [f"several right answers: {format_names(several)}"] if several else []
    notes += [f"capital letters do not count in {format_names(folded)}"] if folded else []
    return graded
