"""An error that ends a command with one sentence."""


class UsageError(Exception):
    """Input that a command cannot work with; the message says what was expected and what was found."""
