"""A federation small enough to compute by hand: three tasks, five clients, blocks of every owner; numpy and Flower only."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto

from fedsocket_flwr.exchange import payload
from fedsocket_flwr.exchange.contract import Array, Block, Blocks, Broadcast, Contract, Membership, Owner, Update
from fedsocket_flwr.exchange.registration import answer_registration
from fedsocket_flwr.runtime.inprocess import InProcessGrid
from fedsocket_flwr.seeds import numpy_generator

BOTH = ("image", "text")
CONTRACT = Contract(
    (
        Block("digits.body", (2,), "float32", Owner("task", "digits")),
        Block("digits.head", (3, 2), "float32", Owner("class_rows", "digits")),
        Block("news.body", (2,), "float32", Owner("task", "news")),
        Block("news.head", (2, 2), "float32", Owner("class_rows", "news")),
        Block("pairs.body", (), "float32", Owner("task", "pairs")),
        Block("pairs.image", (1, 2), "float32", Owner("task", "pairs"), ("image",)),
        Block("embedding.image", (2,), "float32", Owner("modality", "image"), ("image",)),
        Block("embedding.text", (2,), "float32", Owner("modality", "text"), ("text",)),
        Block("residual.a", (2, 1), "float32", Owner("everyone")),
        Block("residual.b", (), "float32", Owner("everyone")),
    )
)
MEMBERS = {
    member.client: member
    for member in (
        Membership("digits-1", "digits", ("image",), 10, (4, 6, 0)),
        Membership("digits-2", "digits", ("image",), 30, (0, 30, 0)),
        Membership("news-1", "news", ("text",), 20, (10, 10)),
        Membership("pairs-1", "pairs", BOTH, 5),
        Membership("pairs-2", "pairs", BOTH, 15),
    )
}
NODES = [{"client": client} for client in MEMBERS]
Work = Callable[[Membership, Broadcast], tuple[Mapping[str, Array], Mapping[str, float]]]


def zeros(contract: Contract = CONTRACT) -> dict[str, Array]:
    return {block.name: np.zeros(block.shape, block.dtype) for block in contract.blocks}


def drawn(*parts: int | str, contract: Contract = CONTRACT) -> dict[str, Array]:
    generator = numpy_generator(*parts)
    return {block.name: np.asarray(generator.standard_normal(block.shape), block.dtype) for block in contract.blocks}


def update_of(member: Membership, blocks: Blocks, round_: int = 1, **more: Any) -> Update:
    """Return a sound update that holds what the client may write."""
    held = {block.name: np.asarray(blocks[block.name], block.dtype) for block in CONTRACT.writable(member)}
    facts = {"examples": member.examples, "class_counts": member.class_counts, **more}
    return Update(member.client, round_, round_, held, **facts)


def same_bits(first: Blocks, second: Blocks) -> bool:
    return list(first) == list(second) and all(
        first[name].dtype == second[name].dtype
        and first[name].shape == second[name].shape
        and first[name].tobytes() == second[name].tobytes()
        for name in first
    )


def over_the_wire(message: Message) -> Message:
    """Return a message as it arrives after Flower wrote and read its bytes."""
    return message_from_proto(message_to_proto(message))


def sent_message(content: RecordDict, message_type: str = MessageType.TRAIN, node: int = 2) -> Message:
    InProcessGrid(ClientApp(), [])  # Flower makes messages only inside a task, which the grid declares.
    message = Message(content, node, message_type)
    message.metadata.__dict__["_message_id"] = f"sent-to-{node}"
    return message


def drift(member: Membership, broadcast: Broadcast) -> tuple[Mapping[str, Array], Mapping[str, float]]:
    """Move every block by numbers that depend on client, round and block alone; report DEV from the second round on."""
    moved = {}
    for name, block in broadcast.blocks.items():
        step = numpy_generator("drift", member.client, broadcast.round, name).standard_normal(block.shape)
        moved[name] = np.asarray(block + step, block.dtype)
    metrics = {"loss.q": 1.0 / broadcast.round}
    return moved, metrics | ({"dev.q.accuracy": 0.5} if broadcast.round > 1 else {})


def numpy_app(work: Work = drift) -> ClientApp:
    """Return a ClientApp whose nodes say who they are by ``client`` in their node configuration."""
    app = ClientApp()

    def member_of(context: Context) -> Membership:
        return MEMBERS[str(context.node_config["client"])]

    def answer(message: Message, context: Context) -> Message:
        member, broadcast = member_of(context), payload.read_broadcast(message)
        blocks, metrics = work(member, broadcast) if broadcast.phase == "train" else ({}, {"dev.q.accuracy": 0.75})
        update = Update(
            member.client, broadcast.round, broadcast.round, blocks, member.examples, member.class_counts, metrics=metrics
        )
        return Message(payload.write_update(update), reply_to=message)

    @app.query("register")
    def register(message: Message, context: Context) -> Message:
        return Message(answer_registration(member_of(context), {}), reply_to=message)

    app.train()(answer)
    app.query("close")(answer)
    app.query("test")(answer)
    return app


def grid_of(work: Work = drift, nodes: Sequence[Mapping[str, str]] = NODES) -> InProcessGrid:
    return InProcessGrid(numpy_app(work), nodes)
