"""From a job to its outcome: a specification, a plan, a launcher that carries it out, and a report."""
