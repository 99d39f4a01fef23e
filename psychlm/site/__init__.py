"""Run the numbered notebooks, render what they show, and build the page that leads to them.

The one room that imports papermill and nbconvert::

    collection      which notebooks there are, their questions, parameters and profiles
    fingerprint     what a notebook's outcome depends on: code, parameters, data
    runner          run the chosen ones, several at a time; publish only what is whole
    processes       start and end the processes that execute notebooks
    worker          such a process
    progress        one bar for all
    storage         reports on disk: read even when broken, written whole, locked
    render          an executed notebook -> one HTML file that needs no network
    comparison      a recorded number beside the published one
    index           the reports -> ``reports/index.html``
"""

from psychlm.site.collection import (
    Notebook,
    NotebookError,
    find,
    parse_parameters,
    profile_parameters,
    select,
)
from psychlm.site.index import build_index
from psychlm.site.runner import Outcome, RunLockedError, run, summary

__all__ = [
    "Notebook",
    "NotebookError",
    "Outcome",
    "RunLockedError",
    "build_index",
    "find",
    "parse_parameters",
    "profile_parameters",
    "run",
    "select",
    "summary",
]
