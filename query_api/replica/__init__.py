"""A query replica: reads the table and registry topics and answers from them."""
