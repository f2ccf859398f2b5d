"""The probe of a batch size: steps that are measured, the lines through their peaks, the allocator replayed."""
