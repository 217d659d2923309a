"""The node side: keepers, the node machine, and a channel to the control plane. It is the same under every engine."""
