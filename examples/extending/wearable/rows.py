"""The rows that another project needs: one for its data set, one for its method. Nothing here imports torch."""

from fedsocket_flwr.datasets.catalogue import DatasetEntry
from fedsocket_flwr.methods import Method
from wearable.recordings import ACTIVITIES

RECORDINGS = DatasetEntry(
    name="recordings",
    kind="classification",
    modalities=("accelerometer",),
    reader="wearable.recordings:read",
    classes=tuple(ACTIVITIES),
    licence="CC0-1.0",
    source="computed",
    how_to_get="nothing to get",
    size="as the options say",
)

MEDIAN = Method(
    strategy="wearable.median:MedianStrategy",
    client="wearable.label_learner:LabelLearner",
    shares_q=True,
)
