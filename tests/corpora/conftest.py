"""What tests of files of answers share."""

import pytest

from psychlm import corpora


@pytest.fixture
def read(tmp_path):
    """Write a table, or a text, and return what is read from it with what is told."""

    def read(table, name="answers.csv", **told):
        text = table if isinstance(table, str) else table.to_csv(index_label="id")
        (tmp_path / name).write_text(text)
        return corpora.read_answers(tmp_path / name, **told)

    return read
