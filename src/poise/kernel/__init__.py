"""What happens: pure state machines. They are told the time and handed messages; they answer with events and effects."""
