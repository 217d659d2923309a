"""The node side: keepers, the node machine, and a channel to the control plane. The same under every engine."""
