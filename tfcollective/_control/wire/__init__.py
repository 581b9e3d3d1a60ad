"""The protocol between a coordinator and its clients."""
