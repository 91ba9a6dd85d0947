"""Train a critic on rollouts of the initial policy, and nothing else, into a folder that runs begin with.

It is a run like any other, in a directory of its own, that ends before the first policy update: so it survives what a
run survives, and is resumed as one.
"""

from pathlib import Path

from msgspec.structs import replace

from moonmill.config import Config
from moonmill.errors import ConfigError, RunError
from moonmill.reporting import Reporter, Summary
from moonmill.trainer import critic_folder
from moonmill.trainer.algorithms.presets import resolve
from moonmill.trainer.checkpoint import latest
from moonmill.trainer.critic_folder import CriticDescription
from moonmill.trainer.warm_up import most_steps

_SUFFIX = "-critic"


def pretraining(config: Config) -> Config:
    """The run that pre-trains a run's critic: in a directory beside that run's, without evaluations.

    Raises:
        ConfigError: there is no critic, or nothing that says how long it is to be trained.
    """
    critic = resolve(config.algorithm, config.learner.batch_rollouts).critic
    if critic is None:
        raise ConfigError(
            f"algorithm: {config.algorithm.preset} has no critic, so there is nothing to pre-train: take one with the "
            "advantage gae, such as preset sao"
        )
    if not most_steps(critic):
        raise ConfigError(
            "algorithm.critic: nothing says how long it is to be pre-trained: set algorithm.critic.pretrain to {}, "
            "which ends by itself, or algorithm.critic.warmup_steps to a number of steps"
        )
    return replace(config, run_dir=f"{config.run_dir}{_SUFFIX}", eval=replace(config.eval, tasks=0, samples=1))


def pretrain(config: Config, out: Path, *, resume: bool, reporter: Reporter) -> Summary:
    """Train the critic, and write it to the folder `out` where the run has come to its end.

    Args:
        config: what `pretraining` has made.
        out: is made; nothing stands there yet.
        resume: continue the run that stands in the config's directory.
        reporter: is told what happens.

    Raises:
        MoonmillError: as `train` raises; or it cannot be written.
    """
    from moonmill.trainer.run import train

    run, out = Path(config.run_dir).absolute(), out.absolute()  # what is played may change the working directory
    summary = train(config, resume=resume, reporter=reporter, critic_only=True)
    if summary.status != "finished":
        return summary
    if summary.version:
        raise RunError(
            f"{config.run_dir} has trained its policy too, so that its critic is not one of the initial policy: take "
            "another run_dir"
        )
    critic, checkpoint = resolve(config.algorithm, config.learner.batch_rollouts).critic, latest(run)
    assert critic is not None
    assert checkpoint is not None
    explained = summary.critic.get("explained_variance_smoothed")
    description = CriticDescription(
        config.model.path, critic.lora, critic.freeze_attention, summary.steps, summary.rollouts_trained, explained
    )
    critic_folder.write(checkpoint, out, description)
    return summary
