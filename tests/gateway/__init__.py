"""A front before real servers, over real sockets."""
