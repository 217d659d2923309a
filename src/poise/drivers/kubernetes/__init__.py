"""A client of Kubernetes API servers: credentials, calls, and copies of collections that are kept up to date."""
