"""Pure decisions of training: checkpoints, phases, precision, pipelines, communication."""
