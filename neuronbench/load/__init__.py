"""The measuring client: plan, drive, record, reduce."""
