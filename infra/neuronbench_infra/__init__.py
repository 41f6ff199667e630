"""The CDK application: what an account needs for boxes, runs and shared tracking."""
