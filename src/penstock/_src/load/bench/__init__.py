"""What loading reaches on this machine: measured, and extrapolated to a plan."""
