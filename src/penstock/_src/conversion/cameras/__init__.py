"""Images and video packets on their way into the output."""
