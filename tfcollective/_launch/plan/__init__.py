"""From what the user asks for to the processes of every node."""
