"""Saving what a damaged recording still holds."""
