"""What holds for all tests."""

import signal

# Started in the background of a shell, this process ignores Ctrl-C and so would all processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
