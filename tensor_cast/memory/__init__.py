"""From storages' lifetimes to live bytes, the peak, and who holds it."""
