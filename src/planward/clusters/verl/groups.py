"""A step trains on whole groups or not at all.

verl's trainer logs an error of the reward function and goes on: what it could not judge is left out of the batch,
and of the validation curve it counts as failure. A broken verifier would then look like a bad model.
"""

from __future__ import annotations

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class GroupFailed(RuntimeError):
    """A completion could not be written or judged; its worker's log has the error."""


class WholeGroups(ReplayBuffer):
    """verl's buffer of the synchronous trainer, which stops the run where a prompt's group failed."""

    def _sync_metadata_from_transfer_queue(self) -> None:
        super()._sync_metadata_from_transfer_queue()
        failed = {partition: len(keys) for partition, keys in self.failure_keys.items() if keys}
        if failed:
            counts = ", ".join(f"{count} of {partition}" for partition, count in sorted(failed.items()))
            raise GroupFailed(
                f"prompts whose completions could not all be written and judged: {counts}; "
                "search the workers' logs for 'Error in _run_prompt'"
            )
