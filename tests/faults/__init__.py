"""The fault simulator, and bugs that it has to find."""
