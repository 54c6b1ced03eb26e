"""Mooncake Conductor's RPC: what its C++ client and the Python one over that ask by `coro_rpc`."""
