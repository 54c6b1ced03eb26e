"""Who may ask for what: keys with rights and tenants, and how often."""
