"""Records of serving that only the gateway and the simulator of services read."""
