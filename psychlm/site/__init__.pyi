from .collection import NotebookError as NotebookError, find as find, new as new
from .index import (
    LEDGER_COLUMNS as LEDGER_COLUMNS,
    gather_numbers as gather_numbers,
    gather_runs as gather_runs,
    match as match,
    printed_cells as printed_cells,
    read_report as read_report,
    report_files as report_files,
    reports_folder as reports_folder,
)
from .runner import run as run
