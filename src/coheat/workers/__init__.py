"""One training by several processes: who starts them, watches them, and starts them again."""
