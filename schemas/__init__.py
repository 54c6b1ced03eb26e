"""What crosses a boundary: identities, events, log records, registrations, positions, bounds,
errors.

Nothing here does I/O, reads a clock or logs. Every other package may import this one; it imports
none.
"""
