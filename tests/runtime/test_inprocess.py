import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsocket_flwr.runtime.inprocess import InProcessGrid


def counting_app() -> ClientApp:
    """Answer with who one is and how often one was asked; client ``b`` raises."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked = context.state.config_records.setdefault("asked", ConfigRecord({"times": 0}))
        asked["times"] = int(asked["times"]) + 1  # type: ignore[arg-type]
        if context.node_config["client"] == "b":
            raise ValueError("no\ndata")
        answer = ConfigRecord({"client": str(context.node_config["client"]), "node": context.node_id, **asked})
        return Message(RecordDict({"answer": answer}), reply_to=message)

    return app


def grid() -> InProcessGrid:
    return InProcessGrid(counting_app(), [{"client": name} for name in "abc"])


def ask(where: InProcessGrid, *nodes: int) -> list[Message]:
    messages = [Message(RecordDict(), node, "train") for node in nodes]
    replies = list(where.send_and_receive(messages, timeout=1.0))
    assert [reply.metadata.reply_to_message_id for reply in replies] == [message.metadata.message_id for message in messages]
    assert len({message.metadata.message_id for message in messages}) == len(messages)
    return replies


def answer_of(reply: Message) -> dict[str, object]:
    return dict(reply.content.config_records["answer"])


class TestDelivery:
    def test_nodes_are_numbered_as_their_configurations(self) -> None:
        where = grid()
        nodes = list(where.get_node_ids())
        assert len(set(nodes)) == 3
        assert [answer_of(reply)["client"] for reply in ask(where, nodes[0], nodes[2])] == ["a", "c"]

    def test_a_nodes_context_stays_with_it(self) -> None:
        where = grid()
        first, *_, last = where.get_node_ids()
        ask(where, first)
        assert [answer_of(reply)["times"] for reply in ask(where, first, last)] == [2, 1]

    def test_a_client_that_raises_is_an_error_reply(self) -> None:
        replies = ask(grid(), 2, 3, 4)
        assert [reply.has_error() for reply in replies] == [False, True, False]
        assert (replies[1].error.code, replies[1].error.reason) == (2, "ValueError: no\ndata")

    def test_replies_are_handed_out_once(self) -> None:
        where = grid()
        (sent,) = where.push_messages([Message(RecordDict(), 2, "train")])
        assert len(list(where.pull_messages([sent]))) == 1
        assert list(where.pull_messages([sent])) == []
        assert list(where.pull_messages(["unknown"])) == []

    def test_a_message_of_a_type_that_the_app_does_not_know_is_an_error_reply(self) -> None:
        (reply,) = grid().send_and_receive([Message(RecordDict(), 2, "query.unknown")])
        assert reply.has_error()

    def test_there_is_no_run_at_a_superlink(self) -> None:
        with pytest.raises(NotImplementedError, match="no record at a SuperLink"):
            _ = grid().run
