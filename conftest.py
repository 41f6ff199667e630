"""Policy of this repository for pytest; the plugin itself comes from the installed package."""

pytest_plugins = ["pytester"]
