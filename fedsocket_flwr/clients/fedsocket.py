"""The FedSocket client (FedSocket v1, A.4-A.6).

A round is Stage I (once), Stage II and Stage III: Private warms up on labels, learns from the frozen global Q, and then teaches
the client's copy of Q, which goes back to the server.
"""

import torch

from fedsocket_flwr.clients.participant import Participant, State
from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.learning.teaching import Teacher, train_private, train_q


class FedSocketClient(Participant):
    """Private and Q teach each other; see :class:`fedsocket_flwr.clients.participant.Participant` for the rest."""

    def learn(self, state: State, server_round: int) -> dict[str, float]:
        """Run Stages I to III and return the losses of Private and of Q."""
        if state.q is None or state.q_optimiser is None:
            raise ContractError("FedSocket needs a shared predictor")
        if self.training.examples == 0:
            return {}
        epochs, teaching = self.settings.epochs, self.config.training.teaching
        private, q = state.private, state.q
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed("private", server_round))
            if state.version == 0:
                warm_up = self.schedule("warm-up", server_round, self.config.training.warm_up_epochs)
                train_private(self.training, private, state.optimiser, warm_up)
            global_q = Teacher(self.training.q_table(q), teaching.distil_private, teaching.fusion)
            private_loss = train_private(
                self.training,
                private,
                state.optimiser,
                self.schedule("Private", server_round, epochs),
                global_q,
                state.fusion_gate,
            )
            torch.manual_seed(self.seed("q", server_round))
            frozen_private = Teacher(self.training.private_table(private), teaching.distil_q)
            q_loss = train_q(self.training, q, state.q_optimiser, self.schedule("Q", server_round, epochs), frozen_private)
        return {"loss.private": private_loss, "loss.q": q_loss}
