"""Give the parts names of their own instead of import paths, for runs in this process."""

from fedsocket_flwr.datasets.catalogue import CATALOGUE
from fedsocket_flwr.datasets.interfaces import EXTRACTORS
from fedsocket_flwr.methods import METHODS
from fedsocket_flwr.models.registry import PRIVATE_MODELS
from wearable.rows import MEDIAN, RECORDINGS


def register() -> None:
    """Add a row to each registry; ``wearable.yaml`` could then say ``dataset: recordings``, ``model: signal_cnn`` and so on."""
    CATALOGUE[RECORDINGS.name] = RECORDINGS
    EXTRACTORS["spectrum"] = "wearable.spectrum:Spectrum"
    PRIVATE_MODELS["signal_cnn"] = "wearable.models:SignalCNN"
    METHODS["median"] = MEDIAN
