"""What passes between server and clients: the sections ``exchange``, ``merging``, ``participation`` and ``evaluation``."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from fedsocket_flwr.field_types import Fraction, Names, NonNegative, Positive, Settings, Share, sequence_as_tuple


class ExchangeSettings(Settings):
    """What travels. ``isolated`` tasks keep residual and modality embeddings of their own; ``own`` exchanges nothing at all."""

    payload: Literal["owned", "full"] = "owned"
    sharing: Literal["shared", "own"] = "shared"
    isolated: Names | Literal["all"] = ()


class MergingSettings(Settings):
    """How the server merges: what several tasks share (FedSocket v1, Eq. 20), and the same-task protocol's Q.

    ``stabiliser`` is the share of the way from Q to the clients' mean that the same-task server goes; ``gate_class_rows`` makes
    it merge a class row only over the clients that hold the class. ``task_mean`` says what the clients of a task become: the
    sample-weighted mean, or a robust one, of which ``trimmed`` drops the share ``trim`` of the answers at each end.
    ``norm_bound`` is the largest L2 norm of a client's update; a longer one is shortened to it.
    """

    residual: Literal["projected", "mean"] = "projected"
    modality: Literal["mean", "projected"] = "mean"
    stabiliser: Fraction = 0.5
    gate_class_rows: bool = False
    task_mean: Literal["weighted", "median", "trimmed"] = "weighted"
    trim: Annotated[Fraction, Field(lt=0.5)] = 0.1
    norm_bound: Positive | None = None


class ParticipationSettings(Settings):
    """Who is asked each round: a share of every task's clients that are there, at least one, and how long to wait for them.

    The run starts when all clients have registered, or, after ``registration_seconds``, with ``minimum_clients`` (null: with none
    missing). A later round waits as long for that many (null: for one). ``largest_answer`` bounds an answer's bytes (null: its
    blocks and one MiB).
    """

    share: Fraction = 1.0
    tasks: dict[str, Fraction] = {}
    registration_seconds: Positive = 300.0
    round_seconds: Positive = 3600.0
    minimum_clients: Annotated[int, Field(ge=1)] | None = None
    largest_answer: Annotated[int, Field(ge=1)] | None = None


class EvaluationSettings(Settings):
    """How clients are measured. DEV is dealt as TEST is."""

    test: Literal["shared", "own"] = "shared"
    rhos: Annotated[tuple[NonNegative, ...], BeforeValidator(sequence_as_tuple), Field(min_length=1)] = (
        0.0,
        0.125,
        0.25,
        0.5,
        1.0,
        2.0,
        4.0,
        8.0,
        16.0,
    )
    mixtures: Annotated[tuple[NonNegative, ...], BeforeValidator(sequence_as_tuple), Field(min_length=1)] = tuple(
        step / 10 for step in range(11)
    )
    betas: Annotated[tuple[Share, ...], BeforeValidator(sequence_as_tuple), Field(min_length=1)] = (
        0.0,
        0.2,
        0.35,
        0.5,
        0.75,
        1.0,
    )
    fold_size: Annotated[int, Field(ge=1)] = 200
    tensorboard: bool = False
