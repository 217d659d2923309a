"""The inference gateway: one front for models that Poise runs and for servers that others run."""
