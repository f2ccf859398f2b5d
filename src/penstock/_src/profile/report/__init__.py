"""What a recorded run looks like: table, live view, HTML page, trace, scalars."""
