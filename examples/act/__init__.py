"""ACT imitation learning on penstock's loader: model, policies, data, training and rollouts."""
