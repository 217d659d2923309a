"""What answers requests for models: a front before model servers, and models of one's own."""
