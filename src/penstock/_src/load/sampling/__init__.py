"""Which sample comes next, and which rows it needs: computed, never stored."""
