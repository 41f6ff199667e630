"""What runs on a box: the script that sets it up, the unit that keeps the run going, and the agent that is the run.

The agent runs pytest, sends receipts, console output and events to S3 as they come, and goes on after a crash, a reboot
or on another box. It knows nothing of EC2: what it may do there is `shutdown`.
"""
