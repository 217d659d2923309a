"""Stores that several machines can reach, so that another control plane can take over: PostgreSQL and etcd."""
