"""What can go wrong with the real servers of the tests.

ServerError
├── ServerDied          a server ended, or did not answer in time: its last log lines are in the message
├── KubectlFailed       kubectl answered with an error
└── NotATestCluster     a cluster of somebody's own that does not say that tests may use it
"""


class ServerError(Exception):
    """Root of the errors of the real servers that tests and benchmarks start."""


class ServerDied(ServerError):
    """A server ended, or did not become ready in time."""


class KubectlFailed(ServerError):
    """kubectl ended with a status other than 0; the message is the command and what it wrote."""


class NotATestCluster(ServerError):
    """The cluster does not hold the marker that allows tests to use it."""
