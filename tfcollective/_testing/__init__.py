"""Typed fakes for tests of this package and of launchers outside it; the package itself imports none of them."""
