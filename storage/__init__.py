"""Access to RocksDB: opening, scanning, and the meaning of its errors."""
