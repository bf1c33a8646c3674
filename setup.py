"""Packaging: console scripts, paste entry points, extras. ``bin/keelstore`` installs from here by itself."""

import os
import re
import runpy

from setuptools import Extension, find_packages, setup

HERE = os.path.dirname(os.path.abspath(__file__))


def read(*path):
    with open(os.path.join(HERE, *path), encoding="utf-8") as file:
        return file.read()


NAMES = runpy.run_path(os.path.join(HERE, "keelstore", "common", "entry_points.py"))

REQUIRES = [  # doc/design/dependencies.md says what each is for
    "awscrt>=0.23",
    "click>=8.1",
    "cryptography>=41.0",
    "dnspython>=2.4",
    "eventlet>=0.36",
    "greenlet>=3.0",
    "lxml>=4.9.3",
    "numpy>=1.25",
    "PasteDeploy>=3.1",
    "psutil>=5.9",
    "PyECLib>=1.7",
    "pymemcache>=4.0",
    "requests>=2.31",
    "rich>=13.0",
    "WebOb>=1.8.7",
    "xattr>=1.0",
]
TEST_REQUIRES = [
    "boto3>=1.34",
    "hypothesis>=6.90",
    "keystonemiddleware>=10.3",
    "lxml-stubs>=0.5",
    "mypy>=1.8",
    "prometheus_client>=0.17",
    "pytest>=7.4",
    "pytest-timeout>=2.2",
    "python-swiftclient>=4.4",
    "ruff>=0.4",
    "types-requests>=2.31",
]

setup(
    name="keelstore",
    version=re.search(r'__version__ = "([^"]+)"', read("keelstore", "__init__.py"))[1],
    description="An object store, compatible with OpenStack Swift",
    long_description=read("README.md"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["keelstore", "keelstore.*"]),
    package_data={"keelstore.common": ["*.c"]},
    ext_modules=[  # a plain library, loaded by keelstore/common/digests.py; without a compiler hashlib does its work
        Extension("keelstore.common._md5lanes", [os.path.join("keelstore", "common", "md5lanes.c")], optional=True,
                  extra_compile_args=["-O3"]),
    ],
    install_requires=REQUIRES,
    extras_require={
        "test": TEST_REQUIRES,
        "interop": ["swift>=2.38,<2.39"],  # run beside us in tests; nothing of it is used by keelstore
        "keystone": ["keystonemiddleware>=10.3"],
        "kms": ["castellan>=4.0"],
        "kmip": ["pykmip>=0.10"],
    },
    entry_points={
        "console_scripts": [f"{name} = {target}" for name, target in NAMES["COMMANDS"].items()],
        "paste.app_factory": [f"{name} = {target}" for name, target in NAMES["APPS"].items()],
        "paste.filter_factory": [f"{name} = {target}" for name, target in NAMES["FILTERS"].items()],
    },
)
