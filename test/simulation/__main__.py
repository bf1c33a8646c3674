"""The entry point: it makes the world virtual before anything of the product is loaded."""

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names must have one order
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "test.simulation", *sys.argv[1:]])

import warnings  # noqa: E402

warnings.simplefilter("ignore")

from test.simulation import enter  # noqa: E402

enter.virtual_world()

from test.simulation.runner import main  # noqa: E402

sys.exit(main())
