"""Messages of OpenTelemetry, as `opentelemetry-proto` 1.45.2 generates them (Apache License 2.0, see LICENSE).

Only their imports are changed. The package itself keeps Ray from starting.
"""
