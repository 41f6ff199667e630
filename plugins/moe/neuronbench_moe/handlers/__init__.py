"""Handlers of this plugin: they run in a stack, by file path."""
