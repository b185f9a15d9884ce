"""Every error that the project raises on purpose.

Each one names what was wrong (a file, a key path, a client), the value found and what was expected, so that the message alone is
enough to mend it.
"""


class FedSocketError(Exception):
    """Root of the project's errors; the command line prints it without a traceback."""


class ConfigurationError(FedSocketError):
    """A configuration file, an override or a combination of settings cannot be used."""


class DataError(FedSocketError):
    """A data file is missing, truncated, altered or not in its documented layout."""


class PartitionError(DataError):
    """A data set cannot be divided over the clients as asked."""


class ContractError(FedSocketError):
    """A block, membership or message breaks what the two sides agreed to exchange."""


class RegistrationError(FedSocketError):
    """A node cannot take part: it runs other code or another configuration, or claims a client that is taken."""


class StoreError(FedSocketError):
    """A client's saved state is absent, damaged or belongs to another model."""


class RunError(FedSocketError):
    """A run cannot start, go on or be read."""


class ResourceError(FedSocketError):
    """The machine lacks what the configuration asks for."""


class MeasurementError(FedSocketError):
    """Scores cannot be measured: a value is not finite, or shapes, labels or ids do not fit."""


class DivergenceError(FedSocketError):
    """A client's loss became infinite or NaN; its update does not count."""
