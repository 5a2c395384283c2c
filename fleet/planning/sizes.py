"""A model as the solver takes it: for a context, slots and types of KV, what each layer takes and reads. Pure."""

from __future__ import annotations

from functools import cached_property

from fleet.models.attention import attention_of
from fleet.models.gguf import GgufHeader
from fleet.models.memory import Ask, compute_bytes, host_bytes, kv_by_layer, layer_shapes, weight_bytes
from fleet.planning.solve import Compute, Layer
from fleet.planning.timing import read_bytes


class ModelSizes:
    """The layers of one model. With `output_on_host` its output matrix stays in the head's main memory."""

    def __init__(self, header: GgufHeader, *, output_on_host: bool = False) -> None:
        self.header = header
        self.n_layers = header.n_layers
        self.output_on_host = output_on_host
        self._computed: dict[tuple[object, ...], int] = {}

    def layers(self, ask: Ask) -> tuple[Layer, ...]:
        """Every layer, the output layer last."""
        kv, read = kv_by_layer(self.header, ask), self._read
        layers = [Layer(weight_bytes(self.header, number), kv[number], read[number])
                  for number in range(self.n_layers)]
        output = 0 if self.output_on_host else weight_bytes(self.header, self.n_layers)
        return (*layers, Layer(output, 0, output))

    def compute(self, ask: Ask) -> Compute:
        """Bytes of buffers by range. They follow from the kinds of layers in it, so few are ever worked out."""
        shapes = layer_shapes(self.header, ask)

        def of_range(first: int, last: int) -> int:
            layers = range(first, min(last, self.n_layers) if self.output_on_host else last)
            if not layers:
                return 0
            # Layers before the device's last one that attends keep the masks beside what they compute (compute_bytes).
            attending = max(first, self._attending[min(last, self.n_layers)])
            key = (ask, frozenset(shapes[first:attending]), frozenset(shapes[attending:last]),
                   self.n_layers in layers)
            if key not in self._computed:
                self._computed[key] = compute_bytes(self.header, ask, layers)
            return self._computed[key]
        return of_range

    def host(self, ask: Ask) -> int:
        """Bytes that the head's main memory takes whatever is dealt: input, logits, and the output matrix if there."""
        kept = self.header.output_bytes if self.output_on_host and not self.header.tied_output else 0
        return host_bytes(self.header, ask) + kept

    @property
    def host_read(self) -> int:
        """Bytes that the head's processor reads for a token besides its layers."""
        return self.header.output_bytes if self.output_on_host else 0

    @property
    def logits_bytes(self) -> int:
        """Bytes that a remote device with the output layer sends for each token."""
        return 4 * (self.header.n_vocab or 0)

    @property
    def hidden_bytes(self) -> int:
        """Bytes of the state between two layers, sent to and from a remote device for each token."""
        return 4 * (self.header.number("{arch}.embedding_length") or 0)

    @cached_property
    def _attending(self) -> tuple[int, ...]:
        """By the number of layers looked at: the last of them that attends, 0 for none."""
        last = [0]
        for number, kind in enumerate(attention_of(self.header)):
            last.append(number if kind.key_width else last[-1])
        return tuple(last)

    @cached_property
    def _read(self) -> tuple[int, ...]:
        """Bytes of each layer that one token reads: of the experts only the part that is in use."""
        return tuple(read_bytes(self.header, number) for number in range(self.n_layers))
