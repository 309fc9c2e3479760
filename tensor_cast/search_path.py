"""Where configs are looked for: ours, then the ``conf`` folder where the user stands.

Ours come first, so that a folder adds names and never takes over ``config.yaml``: many projects have a ``conf``.
"""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from tensor_cast.paths import user_dirs


class UserConf(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in user_dirs("conf"):
            search_path.append("user", f"file://{folder}")


def register() -> None:
    Plugins.instance().register(UserConf)
