"""The distributed form, all roles as processes on one broker."""
