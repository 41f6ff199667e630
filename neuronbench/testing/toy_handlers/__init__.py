"""Handlers for tests of whatever deals with workers; loaded by workers, never imported."""
