"""`serving:` of fleet.yaml: when models come and go by themselves."""

from __future__ import annotations

from fleet.config.fields import boolean, number
from fleet.config.form import Form, Section
from fleet.config.schema import ServingConfig

SERVING_KEYS = ("on_request", "idle", "least", "patience", "keep_prompts")
LONGEST = 7 * 86400.0


def serving(form: Form) -> ServingConfig:
    """The whole section."""
    section = Section(form, SERVING_KEYS, "a mapping with keys such as on_request and idle")
    default = ServingConfig()
    seconds = "seconds, 0 for never"
    return ServingConfig(
        on_request=boolean(section["on_request"], default.on_request),
        idle=number(section["idle"], default.idle, 0.0, LONGEST, seconds),
        least=number(section["least"], default.least, 0.0, LONGEST, "seconds"),
        patience=number(section["patience"], default.patience, 0.0, LONGEST, "seconds"),
        keep_prompts=boolean(section["keep_prompts"], default.keep_prompts),
    )
