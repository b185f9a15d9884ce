"""How clients learn: the ``training`` section of a configuration."""

from typing import Annotated, Literal

from pydantic import Field

from fedsocket_flwr.field_types import NonNegative, Number, Positive, Settings


class OptimiserSettings(Settings):
    """An optimiser and the size of a client's local work in a round."""

    optimiser: Literal["sgd", "adam", "adamw"]
    learning_rate: Positive
    momentum: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0
    epochs: Annotated[int, Field(ge=1)] = 2
    batch_size: Annotated[int, Field(ge=1)] = 32


class PredictorOptimiserSettings(Settings):
    """Q's optimiser; its epochs and batches are those of the client's private model."""

    optimiser: Literal["sgd", "adam", "adamw"] = "adamw"
    learning_rate: Positive = 3e-4
    momentum: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.01


class TeachingSettings(Settings):
    """The loss weights of Stages II and III; a weight of zero switches its term off.

    ``distil_private`` weighs Q -> Private and ``fusion`` the fused branch (both zero: No return); ``distil_q`` weighs
    Private -> Q (zero: Label Q). In the same-task protocol ``cross_fit`` is alpha of Eq. 19, the weight of a donor's out-of-fold
    teacher (Label Q: zero as well), which sees all the donor's modalities or only those that Q reads; and a recipient's Q learns
    from its own Private or from the frozen global Q.
    """

    distil_private: NonNegative = 0.5
    fusion: NonNegative = 0.25
    distil_q: NonNegative = 0.2
    temperature: Positive = 2.0
    label_smoothing: Annotated[Number, Field(ge=0, lt=1)] = 0.1
    retrieval_fusion_gate: Annotated[Number, Field(ge=0, le=1)] = 0.5
    cross_fit: NonNegative = 1.0
    donor_teacher: Literal["full", "single_modal"] = "full"
    recipient_teacher: Literal["private", "global_q"] = "private"


class TrainingSettings(Settings):
    """How a client learns. ``private`` is keyed by a client's modalities joined by ``+`` in sorted order: ``image+text``."""

    warm_up_epochs: Annotated[int, Field(ge=0)] = 10
    private: dict[str, OptimiserSettings]
    q: PredictorOptimiserSettings = PredictorOptimiserSettings()
    teaching: TeachingSettings = TeachingSettings()
    private_optimiser: Literal["keep", "reset"] = "keep"
    q_optimiser: Literal["keep", "reset"] = "reset"
