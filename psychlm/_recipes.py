"""How datasets are made from their public originals: the functions that the registry names.

Each takes the paths of the originals and returns the dataset's bytes, which :mod:`psychlm.data`
verifies as it does a download.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

LARGEST_MEMBER = 2**28  # bytes, of a member whose size the registry does not say
GUTENBERG_MARK = re.compile(r"\*\*\* ?(?:START|END) OF [^\n]*\n")
# The data of a fitted mirt object; R reads its slots without mirt.
READ_MIRT = (
    "fit <- readRDS(commandArgs(TRUE)[1]);"
    "write.csv(attributes(fit)$Data$data, row.names = FALSE, na = '')"
)
CATEGORIES = {  # of Laverghetta et al. (2021)
    "MN": "morphological negation",
    "PP": "prepositional phrases",
    "LE": "lexical entailment",
    "Q": "quantifiers",
    "PS": "propositional structure",
    "RLS": "richer logical structure",
    "WK": "world knowledge",
}


class RecipeError(RuntimeError):
    """An original is not what the recipe expects, or a program is missing."""


def read_member(archive: Path, member: str, most_bytes: int = LARGEST_MEMBER) -> bytes:
    """Return a member of a zip or tar archive; no path inside an archive ever reaches the disk. One
    that is absent, spoilt or larger than ``most_bytes`` is a :class:`RecipeError`."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened, opened.open(member) as stream:
                content = stream.read(most_bytes + 1)
        else:
            with tarfile.open(archive) as opened_tar:
                content = (opened_tar.extractfile(member) or io.BytesIO()).read(most_bytes + 1)
    except (KeyError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise RecipeError(
            f"{archive.name} holds no readable {member!r} ({error}); its source may have changed"
        ) from error
    if len(content) > most_bytes:
        raise RecipeError(
            f"{member!r} in {archive.name} has more than {most_bytes:,} bytes, which the dataset "
            "has not; its source may have changed"
        )
    return content


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, lineterminator="\r\n").encode()


def unchanged(originals: Sequence[Path]) -> bytes:
    """Return a table of facts as it is."""
    return originals[0].read_bytes()


def gutenberg(originals: Sequence[Path]) -> bytes:
    """Return a novel of Project Gutenberg without the header and trailer."""
    content = originals[0].read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    parts = GUTENBERG_MARK.split(text.replace("\r\n", "\n"))
    if len(parts) < 3:
        raise RecipeError(f"{originals[0].name} has no lines that mark its start and its end")
    return f"{parts[1].strip()}\n".encode()


def provo_passages(originals: Sequence[Path]) -> bytes:
    """Return one table of passages, each a file of its own, in the order of their numbers."""
    texts = [" ".join(file.read_text(encoding="utf-8").split()) for file in originals]
    return _csv(pd.DataFrame({"text_id": range(1, len(texts) + 1), "text": texts}))


def _comprehenotes_data(archive: Path) -> pd.DataFrame:
    """Return the responses in the mirt object of the release; columns are numbers of the bank."""
    if shutil.which("Rscript") is None:
        raise RecipeError("the release holds an object of R: install R (on Debian: r-base-core)")
    with tempfile.NamedTemporaryFile(suffix=".rds") as file:
        file.write(read_member(archive, "irt_model.rds"))
        file.flush()
        command = ["Rscript", "--vanilla", "-e", READ_MIRT, file.name]
        done = subprocess.run(command, capture_output=True)
    if done.returncode:
        raise RecipeError(f"R cannot read irt_model.rds: {done.stderr.decode().strip()}")
    return pd.read_csv(io.BytesIO(done.stdout)).astype("Int8")


def comprehenotes_responses(originals: Sequence[Path]) -> bytes:
    """Return the graded responses of ComprehENotes: persons in rows, questions Q01 to Q55."""
    responses = _comprehenotes_data(originals[0])
    responses.columns = [f"Q{i:02d}" for i in range(1, responses.shape[1] + 1)]
    responses.insert(0, "person", [f"p{i:03d}" for i in range(1, len(responses) + 1)])
    return _csv(responses)


def comprehenotes_items(originals: Sequence[Path]) -> bytes:
    """Return number in the bank, topic and key of the questions of ComprehENotes."""
    content = io.BytesIO(read_member(originals[0], "ComprehENotes_1.0.tsv"))
    questions = pd.read_csv(content, sep="\t", encoding="cp1252")
    numbers = _comprehenotes_data(originals[0]).columns.str.removeprefix("X").astype(int)
    items = {"item": [f"Q{i:02d}" for i in range(1, len(questions) + 1)], "bank_number": numbers}
    items |= {"topic": questions["disease_topic"], "correct_option": questions["correct_answer"]}
    return _csv(pd.DataFrame(items))


def human_responses(originals: Sequence[Path]) -> bytes:
    """Return the responses of Laverghetta et al. (2021) by phase, from the committed facts."""
    table = pd.read_parquet(originals[0])
    table.insert(1, "category_name", table["category"].map(CATEGORIES))
    return _csv(table[["category", "category_name", "person", "item_id", "correct"]])


def human_panel(originals: Sequence[Path]) -> bytes:
    """Return the panel's responses of Laverghetta et al. (2021), from the committed facts."""
    return _csv(pd.read_parquet(originals[0])[["item_id", "person", "correct"]])


MADE_BY = (unchanged, gutenberg, provo_passages, comprehenotes_responses, comprehenotes_items)
RECIPES: dict[str, Callable[[Sequence[Path]], bytes]] = {
    recipe.__name__: recipe for recipe in (*MADE_BY, human_responses, human_panel)
}
