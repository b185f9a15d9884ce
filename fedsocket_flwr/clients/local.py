"""The Local control: a client that trains its private model on its own labels and exchanges nothing."""

import torch

from fedsocket_flwr.clients.participant import Participant, State
from fedsocket_flwr.learning.teaching import train_private


class LocalClient(Participant):
    """Warm-up once, then as many epochs a round as FedSocket's Private has, from the same seeds."""

    def learn(self, state: State, server_round: int) -> dict[str, float]:
        """Train Private on labels and return its loss."""
        if self.training.examples == 0:
            return {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed("private", server_round))
            if state.version == 0:
                warm_up = self.schedule("warm-up", server_round, self.config.training.warm_up_epochs)
                train_private(self.training, state.private, state.optimiser, warm_up)
            schedule = self.schedule("Private", server_round, self.settings.epochs)
            return {"loss.private": train_private(self.training, state.private, state.optimiser, schedule)}
