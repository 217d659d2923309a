"""The control plane's shell: I/O around the controller."""
