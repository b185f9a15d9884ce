"""``fedsocket-flwr check``: everything that a run will do, said before it does it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets.catalogue import entry
from fedsocket_flwr.datasets.client_data import describe_clients, task_classes
from fedsocket_flwr.evaluation.drawing import to_png
from fedsocket_flwr.evaluation.label_plot import label_distribution
from fedsocket_flwr.evaluation.run_folder import ClientFacts
from fedsocket_flwr.evaluation.tables import Cell, Column, Table, to_markdown
from fedsocket_flwr.exchange import payload
from fedsocket_flwr.exchange.contract import Contract, Membership
from fedsocket_flwr.methods import find_method, shared_shape
from fedsocket_flwr.plain_files import write_whole
from fedsocket_flwr.run_preparation import require_interfaces, require_private_models
from fedsocket_flwr.runtime.device import available_cpus, require_devices
from fedsocket_flwr.text import show_bytes


@dataclass(frozen=True)
class Check:
    """What a configuration would do."""

    config: Configuration
    clients: tuple[dict[str, Any], ...]
    contract: Contract

    @property
    def memberships(self) -> list[Membership]:
        """What each client will declare."""
        return [
            Membership(
                client=row["client"],
                task=row["task"],
                modalities=self.config.client_modalities(row["client"]),
                examples=row["train"] or 0,
                class_counts=tuple(row["class_counts"].values()) or (0,) * len(task_classes(self.config, row["task"])),
            )
            for row in self.clients
        ]

    def lines(self) -> Iterator[str]:
        """Yield the check as Markdown text."""
        run, resources = self.config.run, self.config.resources
        yield f"{run.name}: method {run.method}, seed {run.seed}, {run.rounds} rounds"
        yield ""
        yield to_markdown(self._client_table())
        for modality, interface in self.config.interfaces.items():
            yield f"interface of {modality}: {interface.kind}, width {interface.width}, seed {interface.seed}"
        for name, task in self.config.tasks.items():
            own = "; every client's own, known at registration" if task.has_own_data else ""
            classes = len(task_classes(self.config, name))
            yield f"data of {name}: {task.dataset} ({entry(task.dataset).licence}), {classes} classes{own}"
        yield ""
        yield from self._exchange()
        yield ""
        gpu = f", {resources.gpus} GPU" if resources.gpus else ""
        yield f"resources: {resources.cpus} of {available_cpus()} usable processors a client{gpu}, {resources.threads} threads"

    def write_plot(self, path: Path) -> None:
        """Draw the training labels of every client."""
        facts = [
            ClientFacts(
                name=row["client"],
                task=row["task"],
                model=row["model"],
                train=row["train"],
                dev=row["dev"],
                test=row["test"],
                class_counts=tuple(row["class_counts"].values()),
            )
            for row in self.clients
        ]
        figure = label_distribution(facts, {name: task_classes(self.config, name) for name in self.config.tasks})
        if figure is not None:
            write_whole(path, to_png(figure))

    def _client_table(self) -> Table:
        columns = (Column("client"), Column("task"), Column("model"), Column("train", "integer"), Column("DEV", "integer"))
        rows: list[tuple[Cell, ...]] = [
            (
                row["client"],
                row["task"],
                row["model"],
                row["train"],
                row["dev"],
                row["test"],
                " ".join(str(count) for count in row["class_counts"].values()) or None,
            )
            for row in self.clients
        ]
        return Table((*columns, Column("TEST", "integer"), Column("train rows of each class")), tuple(rows))

    def _exchange(self) -> Iterator[str]:
        blocks = self.contract.blocks
        if not blocks:
            yield "nothing is exchanged"
            return
        sizes: Counter[str] = Counter()
        for block in blocks:
            sizes[f"{block.owner.kind} {block.owner.key}".strip()] += block.size
        yield f"Q: {sum(sizes.values()):,} parameters, {show_bytes(payload.bytes_down(blocks), digits=4)} a message"
        for owner, size in sizes.items():
            yield f"  owned by {owner}: {size:,}"
        members = self.memberships
        owned = sum(payload.bytes_down(self.contract.readable(member)) for member in members)
        counts = sum(payload.bytes_up((), member) for member in members)
        whole = len(members) * payload.bytes_down(blocks)
        rounds = self.config.run.rounds
        for name, down in (("owned", owned), ("full", whole)):
            chosen = " (configured)" if name == self.config.exchange.payload else ""
            yield (
                f"payload {name}{chosen}: {down:,} B down and {down + counts:,} B up a round, "
                f"{rounds * down:,} B down and {rounds * (down + counts):,} B up in {rounds} rounds when every client takes part"
            )


def check_configuration(config: Configuration) -> Check:
    """Look at everything that a run needs, and raise what it would stumble over."""
    method = find_method(config.run.method)
    require_devices(config.resources)
    clients = tuple(describe_clients(config))
    method.needs(config)
    require_interfaces(config)
    require_private_models(config)
    shape = shared_shape(config)
    contract = Contract(())
    if shape is not None and config.exchange.sharing == "shared":
        from fedsocket_flwr.models.predictor import initial_predictor

        contract = initial_predictor(shape, config.run.seed).contract()
    return Check(config, clients, contract)
