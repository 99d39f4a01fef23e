"""Errors of models, in one line that says what to do, and what is asked of options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any


class ModelError(ValueError):
    """A model cannot be opened, or not do what is asked: which, why, and what to do."""


def check_limit(name: str, value: int | None, least: int, most: int | None = None) -> None:
    """Raise a ModelError where a limit that was given is no whole number from least to most."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if value is None or (whole and least <= value and (most is None or value <= most)):
        return
    allowed = f"from {least} to {most}" if most is not None else f"from {least} on"
    raise ModelError(f"{name}={value!r} cannot be: give a whole number {allowed}, or leave it out")


def check_option(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise a ModelError where an option is none of those allowed."""
    if value not in (allowed := list(allowed)):
        raise ModelError(f"{name} {value!r} is unknown; choose one of {allowed}")


@contextmanager
def quiet_transformers(*, warnings: bool = True) -> Iterator[None]:
    """Suppress the progress bars of transformers, and its warnings unless they are wanted."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    if not warnings:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


@contextmanager
def plain_errors(name: str) -> Iterator[None]:
    """Raise a ModelError for whatever transformers could not do; its progress bar stays off."""
    try:
        with quiet_transformers():
            yield
    except ModelError:
        raise
    except BaseException as error:
        # a damaged file fails in any way; the tokenizers library panics, which is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        said = f"cannot be opened: {why}. A file may be damaged; fetch or save it again"
        if isinstance(error, ImportError):
            said = f"needs a library that is not installed: {why}"
        elif "trust_remote_code" in str(error) or "custom code" in str(error):
            said = "brings its own code, which psychlm never runs; use one that transformers knows"
        raise ModelError(f"{name} {said}") from error
