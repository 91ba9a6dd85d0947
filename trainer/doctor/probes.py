"""All probes of a machine, at once."""

import platform
import sys

from moonmill import __version__
from moonmill.trainer.doctor import software, surroundings
from moonmill.trainer.doctor.asking import ask_at_once
from moonmill.trainer.doctor.facts import Facts, Interpreter, Unknown

_SECONDS = 20.0
"""For all of it: a little more than the longest bound that a probe has of its own."""


def probe() -> Facts:
    """Find out what there is. Nothing is changed."""
    asked = ask_at_once(
        {
            "extras": software.extras,
            "torch": software.torch_of,
            "driver": software.driver,
            "cards": software.cards,
            "engines": software.engines,
            "local": surroundings.local,
            "docker": surroundings.docker,
            "disks": surroundings.disks,
            "port": surroundings.port,
            "machine": surroundings.machine,
            "hub": surroundings.hub,
        },
        _SECONDS,
    )
    if isinstance(asked["cards"], Unknown):
        asked["cards"] = 0
    here = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Facts(
        python=Interpreter(platform.python_version(), sys.executable, here, __version__),
        **asked,
    )
