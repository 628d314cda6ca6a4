"""The client of a fork of a warm process: passes its arguments and streams, then exits like the fork.

See `warm_processes`.
"""

import array
import json
import os
import signal
import socket
import sys


def main() -> None:
    address, *words = sys.argv[1:]
    link = socket.socket(socket.AF_UNIX)
    link.connect(address)
    asked = json.dumps([words, dict(os.environ), os.getcwd()]).encode() + b"\n"
    sent = socket.send_fds(link, [asked[:4096]], [0, 1, 2])
    link.sendall(asked[sent:])
    link.recv(4)
    status = link.recv(4)
    code = array.array("i", status)[0] if len(status) == 4 else 1
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
