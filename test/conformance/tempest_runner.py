"""Runs tests of tempest in one process, under the Python of tempest's own environment: tempest_runner.py OUT TEST_OR_MODULE...

TEMPEST_CONFIG_DIR names the directory of its configuration. Each outcome is a line of JSON in OUT, written as soon as it is known.
"""

import json
import sys
import time
import unittest
import warnings

WHY = 4000  # characters of a traceback, from its end


class Lines(unittest.TestResult):
    """Outcomes, a line each. A class that cannot be set up is an error with the name of the class."""

    def __init__(self, file):
        super().__init__()
        self.file, self.began = file, 0.0

    def write(self, test, outcome, why=""):
        line = {"id": test.id(), "outcome": outcome, "why": str(why)[-WHY:], "seconds": round(time.monotonic() - self.began, 2)}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def addSuccess(self, test, details=None):
        self.write(test, "passed")

    def addFailure(self, test, err=None, details=None):
        self.write(test, "failed", self.text(test, err, details))

    def addError(self, test, err=None, details=None):
        self.write(test, "error", self.text(test, err, details))

    def addSkip(self, test, reason=None, details=None):
        self.write(test, "skipped", reason or self.text(test, None, details))

    def addExpectedFailure(self, test, err=None, details=None):
        self.write(test, "skipped", "expected to fail")

    def addUnexpectedSuccess(self, test, details=None):
        self.write(test, "failed", "succeeded against expectation")

    def text(self, test, err, details):
        if details:  # testtools has its own; its log comes first
            ordered = sorted(details.items(), key=lambda item: "traceback" in item[0])
            return "\n".join(content.as_text() for _, content in ordered if content.content_type.type == "text")
        return self._exc_info_to_string(err, test) if err else ""


def main():
    warnings.simplefilter("ignore")
    out, names = sys.argv[1], sys.argv[2:]
    from tempest import config  # noqa: F401  (reads the configuration before the tests do)

    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromName(name) for name in names)
    with open(out, "w") as file:
        suite.run(Lines(file))


if __name__ == "__main__":
    main()
