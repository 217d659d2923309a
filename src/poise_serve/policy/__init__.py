"""Pure decisions of serving: batch sizes, routes, canaries."""
