"""The command ``psychlm`` in this process, as tests call it."""

from click.testing import CliRunner, Result

from psychlm import cli


def run(*arguments: object, text: str | None = None) -> Result:
    """Run a command; it must end by itself, not by a traceback."""
    done = CliRunner().invoke(cli.main, [str(argument) for argument in arguments], input=text)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done


def refused(*arguments: object) -> str:
    """Return in one line what a command prints that must end with code 1 or 2."""
    done = run(*arguments)
    assert done.exit_code in (1, 2), done.output
    return " ".join(done.output.split())
