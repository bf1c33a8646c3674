"""Makes ``.venv`` beside this checkout, installs keelstore into it, and runs one of its modules there.

Runs with whatever Python 3 starts it, so that it can say what is missing. The second time only a small file is read.

KEELSTORE_PYTHON names an interpreter that has everything already; then nothing is installed.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "keelstore-installed.json")
PYTHON = os.path.join(VENV, "bin", "python")
INPUTS = ("setup.py", "pyproject.toml", os.path.join("keelstore", "common", "entry_points.py"),
          os.path.join("keelstore", "common", "md5lanes.c"))
OLDEST = (3, 11)


def run(module, extras=()):
    """Replace this process by the ``main`` of a module, with our name and arguments, in the environment."""
    python = interpreter(extras)
    paths = [ROOT] + [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != ROOT]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("KEELSTORE_COMMAND", sys.argv[0])  # how to call us again, for what we print
    code = f"import sys; from {module} import main; sys.argv[0] = {sys.argv[0]!r}; sys.exit(main())"
    arguments = [python, "-P", "-c", code] + sys.argv[1:]  # -P: nothing is imported from the current directory
    sys.stdout.flush()
    os.execv(python, arguments)


def interpreter(extras=()):
    return os.environ.get("KEELSTORE_PYTHON") or ensure(extras)


def ensure(extras=()):
    """The interpreter of the environment, which is made or brought up to date first."""
    wanted = digest()
    if not is_current(wanted, extras):
        with open(os.path.join(ROOT, ".venv.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two first starts at once: the second waits, then finds all done
            if not is_current(wanted, extras):
                build(wanted, extras)
    return PYTHON


def digest():
    found = hashlib.sha256()
    for name in INPUTS:
        with open(os.path.join(ROOT, name), "rb") as file:
            found.update(file.read())
    return found.hexdigest()


def installed():
    try:
        with open(STAMP) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def is_current(wanted, extras):
    stamp = installed()
    return (stamp.get("digest") == wanted and stamp.get("root") == ROOT and os.access(PYTHON, os.X_OK)
            and set(extras) <= set(stamp.get("extras", ())))


def build(wanted, extras):
    extras = sorted(set(extras) | set(installed().get("extras", ())))
    say(f"installing into {VENV} (the first time this takes a minute)")
    stamp = installed()
    if not os.access(PYTHON, os.X_OK) or stamp.get("root") not in (None, ROOT):
        make_venv(find_python())
    if os.path.exists(STAMP):
        os.unlink(STAMP)
    target = ROOT + ("[{}]".format(",".join(extras)) if extras else "")
    command = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-e", target]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        fail("pip could not install what keelstore needs:\n{}".format(done.stdout.decode("utf-8", "replace").strip()[-2000:]))
    compile_all(PYTHON, "keelstore")
    with open(STAMP + ".new", "w") as file:
        json.dump({"digest": wanted, "extras": extras, "root": ROOT}, file)
    os.replace(STAMP + ".new", STAMP)


def compile_all(python, *directories):
    """Have the bytecode of all modules written, which half of a start's time is spent on else: for users who may not write
    it into this checkout, and where PYTHONDONTWRITEBYTECODE is set.
    """
    subprocess.run([python, "-m", "compileall", "-q", "-j", "0", *(os.path.join(ROOT, name) for name in directories)],
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def find_python():
    """A Python that is new enough."""
    if sys.version_info >= OLDEST:
        return sys.executable
    for minor in range(15, OLDEST[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            return found
    wanted = ".".join(map(str, OLDEST))
    return fail(f"keelstore needs Python {wanted} or newer, and {sys.executable} is {sys.version.split()[0]}")


def make_venv(python):
    shutil.rmtree(VENV, ignore_errors=True)
    done = subprocess.run([python, "-m", "venv", VENV], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode == 0:
        return
    if shutil.which("apt-get") and os.geteuid() == 0:  # a bare Debian has no ensurepip
        say("installing python3-venv")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        subprocess.run(["apt-get", "update", "-qq"], env=environment, **quiet)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-venv"]
        subprocess.run(install, env=environment, **quiet)
        shutil.rmtree(VENV, ignore_errors=True)
        done = subprocess.run([python, "-m", "venv", VENV], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode == 0:
            return
    shutil.rmtree(VENV, ignore_errors=True)
    fail("{} cannot make a virtual environment (on Debian or Ubuntu: apt install python3-venv):\n{}".format(
        python, done.stdout.decode("utf-8", "replace").strip()[-1000:]))


def say(text):
    sys.stderr.write(f"keelstore: {text}\n")
    sys.stderr.flush()


def fail(text):
    sys.stderr.write(f"Error: {text}\n")
    sys.exit(1)
