"""The loop of a script that answers commands, for ``test.support.openstack.Shell``; it runs under a Python that has nothing of ours."""

import json
import os
import sys


def serve(commands):
    """Answer the lines of standard input, each by one of ``commands``. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = json.dumps({"value": commands[asked.pop("command")](**asked)}, default=dict)  # of those that are like one
        except Exception as error:
            answer = json.dumps({"error": type(error).__name__, "text": str(error)})
            sys.excepthook(*sys.exc_info())
        answers.write(answer + "\n")
        answers.flush()
