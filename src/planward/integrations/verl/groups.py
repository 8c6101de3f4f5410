"""Replay buffer for verl that stops the run if any completion of a group could not be generated or judged.

verl's trainer logs an error of the reward function and continues: it drops the completion from the batch and counts it
as a failure in validation. A broken verifier would then look like a bad model.
"""

from __future__ import annotations

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class GroupFailed(RuntimeError):
    """A completion could not be generated or judged; the log of its worker has the error."""


class CompleteGroupsBuffer(ReplayBuffer):
    """verl's buffer of the synchronous trainer; raises GroupFailed if a prompt's group failed."""

    def _sync_metadata_from_transfer_queue(self) -> None:
        super()._sync_metadata_from_transfer_queue()
        failure_counts = {partition: len(keys) for partition, keys in self.failure_keys.items() if keys}
        if failure_counts:
            counts = ", ".join(f"{count} of {partition}" for partition, count in sorted(failure_counts.items()))
            raise GroupFailed(
                f"prompts whose completions could not all be generated and judged: {counts}; "
                "fix: search the workers' logs for 'Error in _run_prompt'"
            )
