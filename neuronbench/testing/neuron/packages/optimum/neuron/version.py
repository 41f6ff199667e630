"""The version whose interfaces these are."""

__version__ = "0.4.5"
