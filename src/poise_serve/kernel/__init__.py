"""Pure state machines of serving: batches, scaling, breakers, caches, budgets."""
