"""Records of training: checkpoints and phases."""
