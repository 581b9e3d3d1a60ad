"""Following hosts while an elastic job runs."""
