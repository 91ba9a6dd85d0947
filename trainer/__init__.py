"""The trainer: controller, buffer, algorithms, critic, learner, publisher, checkpoints."""
