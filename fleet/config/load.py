"""fleet.yaml: where it is, and what it says, strictly.

Everything that is wrong with a file is told at once, each time with file, line, dotted key and the
form that is expected. With no file at all, `FleetConfig()` is in force.
"""

from __future__ import annotations

from collections.abc import Mapping as Environment
from pathlib import Path

from fleet.config import marks, sections
from fleet.config.crosscheck import crosscheck
from fleet.config.form import Form, Notes
from fleet.config.schema import FleetConfig
from fleet.errors import ConfigError
from fleet.ownership import why_not_ours

FILE_NAME = "fleet.yaml"
VARIABLE = "QUARTERDECK_CONFIG"


class ConfigErrors(ConfigError):
    """All that is wrong with one file. `problems`: "fleet.yaml:12: nodes.atlas.prot: unknown key ..."."""

    def __init__(self, path: str, problems: tuple[str, ...], remedy: str = "") -> None:
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{path} has {count}: " + "; ".join(problems),
                         remedy or f"Correct {path} and load it again.")
        self.path = path
        self.problems = problems


def find(explicit: str | None, env: Environment[str, str], cwd: Path) -> Path | None:
    """The file to read: --config, $QUARTERDECK_CONFIG, ./fleet.yaml, then the user's own; None = no file.

    What was named (by --config or the variable) is returned even if it is not there, so that loading
    it says so; the last is ${XDG_CONFIG_HOME:-~/.config}/quarterdeck/fleet.yaml.

    Raises:
        ConfigErrors: there is a ./fleet.yaml that another user could have written. A file decides what is run on
            nodes and whose host keys count; nobody obeys one just because they stand in its folder.
    """
    named = explicit or env.get(VARIABLE, "")
    if named:
        return cwd / _expand(named, env)
    candidates = [cwd / FILE_NAME]
    base = env.get("XDG_CONFIG_HOME", "")
    if base.startswith("/"):
        candidates.append(Path(base, "quarterdeck", FILE_NAME))
    elif env.get("HOME"):
        candidates.append(Path(env["HOME"], ".config", "quarterdeck", FILE_NAME))
    for candidate in candidates:
        try:
            if candidate.is_file():
                if why := why_not_ours(candidate.stat()):
                    raise ConfigErrors(str(candidate), (
                        f"{candidate.name}:1: {candidate} is not read, because {why}. Expected a file of yours; "
                        "name it with --config if you trust it all the same",))
                return candidate
        except OSError:      # a folder that we may not look into holds no file of ours
            continue
    return None


def _expand(path: str, env: Environment[str, str]) -> Path:
    home = env.get("HOME", "")
    return Path(home, path[2:]) if path.startswith("~/") and home else Path(path)


def load(path: Path) -> FleetConfig:
    """The configuration that a file holds.

    Raises:
        ConfigErrors: the file cannot be read, is no YAML, or says something that cannot be.
    """
    try:
        with path.open("rb") as file:
            data = file.read(marks.SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no usable path"
        raise ConfigErrors(str(path), (f"{path} cannot be read: {reason}",),
                           "Name a file that is there and can be read; `quarterdeck init` writes one.") from None
    try:
        text = marks.decode(data)
    except marks.NotReadable as error:
        raise ConfigErrors(str(path), (f"{path.name}:{error.line}: {error.sentence}",)) from None
    return parse(text, str(path))


def parse(text: str, path: str = FILE_NAME) -> FleetConfig:
    """The configuration that a text holds; `path` is for the messages and `FleetConfig.path`.

    Raises:
        ConfigErrors: it is no YAML, or says something that cannot be.
    """
    name = Path(path).name or FILE_NAME
    try:
        root = marks.read(text)
    except marks.NotReadable as error:
        raise ConfigErrors(path, (f"{name}:{error.line}: {error.sentence}",)) from None
    notes = Notes(name)
    config = sections.fleet(Form(notes, "", root.line, root), path)
    if isinstance(root, marks.Mapping):
        crosscheck(config, root, notes)
    if notes.found:
        raise ConfigErrors(path, notes.lines())
    return config
