"""From sample numbers to batches: tasks, threads, slots, tables of numbers, images decoded into their place."""
