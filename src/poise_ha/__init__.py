"""Stores that several machines reach, so that another control plane can take over: PostgreSQL and etcd."""
