"""What training handlers share. Standard library only: it runs in the stack, by file path (`nb_worker.training`)."""
