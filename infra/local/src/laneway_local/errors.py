"""What can go wrong when a stack is started. Each message is one line that says what to do next."""


class StackError(Exception):
    """The local stack can't do what was asked."""


class PackagesMissingError(StackError):
    """Programs are missing and can't be installed from here."""


class NotReadyError(StackError):
    """A process ended, or did not become ready in time."""
