"""What routers ask by gRPC: SGLang's router its KV indexer, SMG's gateway its radix index."""
