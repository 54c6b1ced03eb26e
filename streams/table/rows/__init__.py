"""A table as rows: their bytes, who writes them, and the one reader of them."""
