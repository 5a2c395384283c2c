"""The part `speculation` of an upstream or a model, into its record."""

from __future__ import annotations

from fleet.config.fields import boolean, choice, integer, mapping, number, one_of, word
from fleet.config.form import Form, Section
from fleet.config.marks import Scalar
from fleet.config.schema import DrafterConfig, SpeculationConfig
from fleet.config.urls import URL_EXPECTED, variable, why_no_url
from fleet.speculation.settings import DrafterKind, SpeculationMode

SPECULATION_KEYS = ("mode", "drafters", "ngram", "draft_length", "stride", "deadline", "grace", "grace_text",
                    "look_ahead", "honesty")
STRIDED_SLOTS = 9          # of a head whose drafts are verified, where the user says nothing: 8 tokens at stride 1
DRAFTER_KEYS = ("url", "backend", "model", "key_file", "key_env")
_SERVERS = (str(DrafterKind.LLAMA_SERVER), str(DrafterKind.OLLAMA))
_EXPECTED = "auto, strided, injection, native, off, or a mapping with keys such as mode and drafters"


def speculation(form: Form) -> SpeculationConfig | None:
    """The whole part; `speculation: auto` is the short form of `speculation: {mode: auto}`. None where it is absent."""
    if not form.written:
        return None
    if isinstance(form.value, Scalar):
        return SpeculationConfig(mode=choice(form, SpeculationMode, SpeculationMode.AUTO))
    section = Section(form, SPECULATION_KEYS, _EXPECTED)
    default = SpeculationConfig()
    seconds = "seconds between 0.01 and 600"
    return SpeculationConfig(
        mode=choice(section["mode"], SpeculationMode, default.mode),
        drafters=mapping(section["drafters"], _drafter,
                         "names of drafters with their settings, for example {pi: {url: http://10.0.0.9:8080}}"),
        ngram=boolean(section["ngram"], default.ngram),
        draft_length=integer(section["draft_length"], default.draft_length, 1, 64, "a number of tokens from 1 to 64"),
        stride=integer(section["stride"], default.stride, 1, 16, "a number of tokens from 1 to 16"),
        deadline=number(section["deadline"], default.deadline, 0.01, 600, seconds),
        grace=number(section["grace"], default.grace, 0, 600, "seconds up to 600"),
        grace_text=number(section["grace_text"], default.grace_text, 0, 600, "seconds up to 600"),
        look_ahead=boolean(section["look_ahead"], default.look_ahead),
        honesty=number(section["honesty"], default.honesty, 0, 1, "a share of the requests from 0 (none) to 1 (all)"),
    )


def _drafter(form: Form) -> DrafterConfig:
    section = Section(form, DRAFTER_KEYS, "a mapping with at least `url`")
    url = word(section["url"], "", URL_EXPECTED)
    if not section["url"].written:
        form.wrong("'url' is missing", URL_EXPECTED)
    elif why := why_no_url(url):
        section["url"].wrong(why, URL_EXPECTED)
    if section["key_file"].written and section["key_env"].written:
        section["key_env"].wrong("both 'key_file' and 'key_env' are here", "one of the two")
    kind = DrafterKind(one_of(section["backend"], _SERVERS, _SERVERS[0]) or _SERVERS[0])
    model = word(section["model"], "", "the name of a model")
    if kind is DrafterKind.OLLAMA and not model:
        form.wrong("'model' is missing", "the name that Ollama knows its model by")
    return DrafterConfig(form.name, url, kind, model,
                         word(section["key_file"], "", "the path of a file with the key that this server wants"),
                         variable(section["key_env"]))
