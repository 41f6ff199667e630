"""Backends that come with the core. All others are distributions of their own."""
