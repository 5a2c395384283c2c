"""What the compatibility rules look at, and what they say: plain frozen records. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleet.model import Binary, DeviceKind, LinkKind

Version = tuple[int, int, int]


class Level(StrEnum):
    """How a rule ends."""

    OK = "ok"
    WARNING = "warning"            # it goes; a person should know this of it
    REFUSAL = "refusal"            # it cannot work, or works wrongly


class Runtime(StrEnum):
    """What spreads a model over machines."""

    LLAMA = "llama.cpp"            # llama-server with ggml-rpc-servers
    VLLM = "vllm"                  # vLLM, a stage of the pipeline on each node


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule says of a Situation."""

    level: Level
    rule: str                      # its id: a stable word, the code of the refusal
    sentence: str                  # OK: what was looked at; else what is wrong and where
    remedy: str = ""
    source: str = ""               # where the rule comes from

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}".strip()


@dataclass(frozen=True, slots=True)
class Place:
    """One machine's part: a head, a worker, or a stage of a pipeline. None and "" = not known."""

    node: str
    port: int = 0
    bind: str = ""                             # address that it listens on
    dial: str = ""                             # address that the head dials; with a tunnel the head's own loopback
    binary: Binary | None = None
    protocol: Version | None = None            # of llama.cpp's RPC
    running_build: str = ""                    # what runs there now was started from; "" = nothing of ours runs
    managed: bool = True                       # we start and restart it
    link: LinkKind = LinkKind.UNKNOWN          # what carries it between this machine and the head
    tunnelled: bool = False
    devices: int = 1                           # ggml devices, or GPUs of a stage, that it gives
    vendors: tuple[DeviceKind, ...] = ()       # of the GPUs that it gives, each kind once
    rdma_build: bool | None = None             # its build has RDMA
    rdma_off: bool = False                     # GGML_RPC_NO_RDMA is in its environment
    rdma_addresses: tuple[str, ...] = ()       # addresses of its RDMA interfaces
    key_file: bool = False                     # a head that asks for a key

    @property
    def where(self) -> str:
        """For sentences."""
        return f"{self.node}:{self.port}" if self.port else self.node


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """What of a model decides which settings it can take. None and () = not known."""

    architecture: str = ""
    key_lengths: tuple[int, ...] = ()          # of an attention head, each size once
    value_lengths: tuple[int, ...] = ()
    latent: bool = False                       # multi-head latent attention: K and V share one cache
    draft_head: bool | None = None             # layers that predict several tokens (MTP) are in the file
    scanned: bool = False                      # it has states of mamba's kind


@dataclass(frozen=True, slots=True)
class Speculating:
    """What was asked of speculation, as the runtime's own words."""

    modes: tuple[str, ...] = ()                # of --spec-type, or the method of vLLM's --speculative-config
    draft_model: str = ""
    known_modes: tuple[str, ...] = ()          # that the head's build lists; () = not told
    has_modes: bool = True                     # the build has --spec-type at all


@dataclass(frozen=True, slots=True)
class Streamed:
    """Of a mixture whose experts are read from disk, because not all of them fit into its budget."""

    width: int                                 # tokens of a pass: those of a draft, and one
    outside: bool = False                      # drafts come from in front of the head, not from itself
    overlap: float | None = None               # part of a token's experts that the one before had, where it was seen
    acceptance: float | None = None            # chance that a draft is right, where it was seen


@dataclass(frozen=True, slots=True)
class Situation:
    """One model over some machines, before anything is started."""

    runtime: Runtime
    head: Place
    workers: tuple[Place, ...] = ()            # of vLLM: the stages after the first
    local_devices: int = 0                     # GPUs of the head itself that take layers
    model: ModelTraits = ModelTraits()
    split_mode: str = ""                       # -sm; "" = the default, layer
    shares: int = 0                            # values of -ts; 0 = none
    kv_type_k: str = ""
    kv_type_v: str = ""
    flash_attention: str = ""                  # on, off, auto; "" = the default, auto
    slots: int | None = None                   # requests at once; None = the runtime's choice
    speculating: Speculating = Speculating()
    streamed: Streamed | None = None           # None = all of it is in memory

    @property
    def remote(self) -> tuple[Place, ...]:
        """Workers on other machines than the head's."""
        return tuple(worker for worker in self.workers if worker.node != self.head.node)


def option(arguments: Sequence[str], *names: str) -> str | None:
    """The value that an option has on a command line: the last one given; None when it is not there."""
    found = None
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name not in names:
            continue
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        found = value if equals else following
    return found


def option_list(arguments: Sequence[str], *names: str) -> tuple[str, ...]:
    """The values of an option that takes several, divided by commas."""
    value = option(arguments, *names) or ""
    return tuple(part.strip() for part in value.split(",") if part.strip())
