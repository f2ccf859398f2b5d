"""Where episodes begin and end."""
