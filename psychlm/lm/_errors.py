"""Errors of models, and limits that a caller gives, in one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral


class ModelError(ValueError):
    """A model cannot be opened, or not do what is asked: which, why, and what to do."""


def check_limit(name: str, value: int | None, least: int, most: int | None = None) -> None:
    """Raise a ModelError where a limit that was given is no whole number from least to most."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if value is None or (whole and least <= value and (most is None or value <= most)):
        return
    allowed = f"from {least} to {most}" if most is not None else f"from {least} on"
    raise ModelError(f"{name}={value!r} cannot be: give a whole number {allowed}, or leave it out")


@contextmanager
def plain_errors(name: str) -> Iterator[None]:
    """Raise a ModelError for whatever transformers could not do; its progress bar stays off."""
    from transformers.utils import logging

    noisy = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except ModelError:
        raise
    except ImportError as error:
        raise ModelError(
            f"{name} needs a library that is not installed: {str(error).strip().splitlines()[0]}"
        ) from error
    except BaseException as error:
        # a damaged file fails in any way; the tokenizers library panics, which is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if "trust_remote_code" in str(error) or "custom code" in str(error):
            raise ModelError(
                f"{name} brings its own code, which psychlm never runs; use a model that "
                "transformers knows"
            ) from error
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{name} cannot be opened: {why}. Perhaps a file is damaged or incomplete; fetch or "
            "save it again"
        ) from error
    finally:
        if noisy:
            logging.enable_progress_bar()
