"""Rules about the KV cache. Each function finds what stands against one row of `rules.RULES`."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.planning.situation import Level, Situation

Found = Iterator[tuple[Level, str, str]]
BLOCKS = {"q8_0": 32, "q4_0": 32, "q4_1": 32, "q5_0": 32, "q5_1": 32, "iq4_nl": 32}   # values in a block, by type
WITHOUT_FLASH_ATTENTION = ("grok",)        # llama-context.cpp turns it off for them


def flash_attention_for_v(situation: Situation) -> Found:
    """"auto" turns itself on for a quantised V; "off" does not."""
    if situation.kv_type_v not in BLOCKS:
        return
    if situation.flash_attention == "off":
        over = " Over a slow link it may have been turned off for the wire." if situation.workers else ""
        yield (Level.REFUSAL, f"A V cache of {situation.kv_type_v} needs flash attention, and that is off.{over}",
               "Let flash attention be `auto`, or leave V at f16: K may be quantised without it.")
    elif situation.model.architecture in WITHOUT_FLASH_ATTENTION:
        yield (Level.REFUSAL, f"A V cache of {situation.kv_type_v} needs flash attention, which llama.cpp keeps off "
               f"for {situation.model.architecture}.", "Leave V at f16: K may be quantised.")


def whole_blocks(situation: Situation) -> Found:
    """Only with flash attention are heads laid out one by one."""
    if situation.flash_attention == "off":
        return
    for word, kv_type, lengths in (("K", situation.kv_type_k, situation.model.key_lengths),
                                   ("V", situation.kv_type_v, situation.model.value_lengths)):
        block = BLOCKS.get(kv_type)
        uneven = [length for length in lengths if block and length % block]
        if uneven:
            yield (Level.REFUSAL, f"{word} of {uneven[0]} values a head cannot be cut into the blocks of {block} that "
                   f"{kv_type} has.", f"Leave {word} at f16.")


def one_type_for_latent(situation: Situation) -> Found:
    """K and V lie in one cache there."""
    types = tuple(kv_type or "f16" for kv_type in (situation.kv_type_k, situation.kv_type_v))
    if situation.model.latent and types[0] != types[1]:
        yield (Level.REFUSAL, f"This model has one cache for K and V, and cannot hold them as {types[0]} and "
               f"{types[1]}.", "Give `kv:` one type.")
