"""What a model is wanted with: fleet.yaml, its extra arguments, the flags that are chosen for the wire. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.config.schema import ModelConfig, NodeConfig, SplitMode
from fleet.planning.ladder import Wish
from fleet.planning.situation import option


def wish_of(model: ModelConfig, head: NodeConfig, *, mode: SplitMode | None = None,
            wire: Sequence[str] = ()) -> Wish:
    """The Wish. Later arguments win, as on the command line: the wire's, the node's, the model's."""
    settings = ("-fa", model.flash_attention) if model.flash_attention else ()
    arguments = (*wire, *settings, *head.head.extra_args, *model.extra_args)
    unified = _switch(arguments, ("-kvu", "--kv-unified"), ("-no-kvu", "--no-kv-unified"))
    return Wish(
        context=_count(option(arguments, "-c", "--ctx-size"), model.context),
        slots=_count(option(arguments, "-np", "--parallel"), model.slots) or None,
        type_k=option(arguments, "-ctk", "--cache-type-k") or model.kv_type_k or "f16",
        type_v=option(arguments, "-ctv", "--cache-type-v") or model.kv_type_v or "f16",
        flash_attention=option(arguments, "-fa", "--flash-attn") not in ("off", "0"),
        unified=unified, swa_full="--swa-full" in arguments,
        ubatch=_count(option(arguments, "-ub", "--ubatch-size"), None) or 512,
        mode=mode or model.mode, gpu_layers=model.gpu_layers)


def _count(written: str | None, otherwise: int | None) -> int | None:
    if written is None or not (written.isascii() and written.isdigit()):
        return otherwise
    return min(int(written), 1 << 31)


def _switch(arguments: Sequence[str], on: tuple[str, ...], off: tuple[str, ...]) -> bool | None:
    last = next((argument for argument in reversed(arguments) if argument in (*on, *off)), None)
    return None if last is None else last in on
