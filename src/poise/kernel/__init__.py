"""What happens: pure state machines. Told the time and handed messages, they answer with events and effects."""
