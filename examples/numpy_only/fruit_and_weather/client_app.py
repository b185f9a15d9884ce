"""The client's side: say who one is, and learn from what arrives."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsocket_flwr.exchange.contract import Membership, Update
from fedsocket_flwr.exchange.payload import read_broadcast, write_update
from fedsocket_flwr.exchange.registration import answer_registration
from fruit_and_weather import model
from fruit_and_weather.data import MEMBERS

app = ClientApp()


@app.query("register")
def register(message: Message, context: Context) -> Message:
    """Answer the question that comes before the first round."""
    return Message(answer_registration(member_of(context), {}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Learn from the blocks that this client can execute, and send them back: the same names in the same order."""
    member, broadcast = member_of(context), read_broadcast(message)
    update = Update(
        client=member.client,
        round=broadcast.round,
        version=broadcast.round,
        blocks=model.learn(member, broadcast),
        examples=member.examples,
        class_counts=member.class_counts,
    )
    return Message(write_update(update), reply_to=message)


def member_of(context: Context) -> Membership:
    """Return which client this node is: by its name in ``--node-config``, or by its number in a simulation."""
    if "client" in context.node_config:
        return MEMBERS[str(context.node_config["client"])]
    return list(MEMBERS.values())[int(context.node_config["partition-id"])]
