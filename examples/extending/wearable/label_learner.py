"""A client: Private and Q learn from labels alone, and neither teaches the other."""

import torch

from fedsocket_flwr.clients.participant import Participant, State
from fedsocket_flwr.learning.teaching import train_private, train_q


class LabelLearner(Participant):
    """DEV, checkpoints, the private state and its version, closing and TEST are those of the base class."""

    def learn(self, state: State, server_round: int) -> dict[str, float]:
        """Train ``state.private`` and ``state.q`` in place and return losses for the history."""
        if state.q is None or state.q_optimiser is None or self.training.examples == 0:
            return {}
        epochs = self.settings.epochs
        # Every draw has a seed of its own, by run, client and round; torch's global generator is left as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed("private", server_round))
            schedule = self.schedule("Private", server_round, epochs)
            private_loss = train_private(self.training, state.private, state.optimiser, schedule)
            torch.manual_seed(self.seed("q", server_round))
            schedule = self.schedule("Q", server_round, epochs)
            q_loss = train_q(self.training, state.q, state.q_optimiser, schedule, teacher=None)
        return {"loss.private": private_loss, "loss.q": q_loss}
