"""From receipts to tables and figures. Never hears of sockets."""
