"""Run the numbered notebooks, render what they show, and build the page that leads to them."""

from psychlm.site.collection import NotebookError, find, new
from psychlm.site.index import (
    LEDGER_COLUMNS,
    gather_numbers,
    gather_runs,
    match,
    printed_cells,
    read_report,
    report_files,
    reports_folder,
)
from psychlm.site.runner import run

__all__ = ["LEDGER_COLUMNS", "NotebookError", "find", "gather_numbers", "gather_runs", "match"]
__all__ += ["new", "printed_cells", "read_report", "report_files", "reports_folder", "run"]
