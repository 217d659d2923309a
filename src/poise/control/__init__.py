"""The control plane's shell: a little I/O around the controller."""
