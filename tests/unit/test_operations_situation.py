"""What the compatibility rules are given of a bring-up: read from configuration, readings and the model's header."""

from __future__ import annotations

from fleet.config.schema import (
    DraftConfig,
    ExpertsConfig,
    HeadConfig,
    ModelConfig,
    NodeConfig,
    SpeculationConfig,
    SpeculationMode,
    WorkerConfig,
)
from fleet.experts.bound import Bound, Way
from fleet.experts.budget import Needs
from fleet.model import Address, Binary, Device, DeviceKind, Interface, LinkKind, Node, NodeReading, ServiceKind
from fleet.model.services import ServiceRecord
from fleet.models.gguf import GgufHeader
from fleet.nodes.supervisor import ServiceSpec
from fleet.operations.arrangement import Arrangement, LocalDevice, Seat
from fleet.operations.situation import running_build, situation_of, vendors_of, worse_link
from fleet.operations.streaming import Streaming
from fleet.planning.choose import Choice, WorkerChoice
from fleet.planning.situation import Streamed
from fleet.planning.traits import traits_of
from fleet.runtimes.binaries import Flags

SERVER = Binary("/opt/llama/llama-server", "llama-server", 10068, "571d0d5")
RPC = Binary("/opt/llama/ggml-rpc-server", "ggml-rpc-server", 10068, "571d0d5")
HELP = """
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
--spec-type [none|draft-simple|draft-mtp|ngram-mod]
                                        comma-separated list of types
"""


def interface(name: str, kind: LinkKind, *addresses: str) -> Interface:
    return Interface(name, kind, addresses)


def node(name: str, *interfaces: Interface, devices: tuple[Device, ...] = (),
         services: tuple[ServiceRecord, ...] = ()) -> Node:
    return Node(name, reading=NodeReading(interfaces=interfaces, devices=devices, services=services))


def record(build: str, *, alive: bool = True) -> ServiceRecord:
    return ServiceRecord("worker-50052", ServiceKind.WORKER, 7, "1", (), 50052, "10.0.0.3", alive, 0.0, "/s",
                         build=build)


def header(**metadata: object) -> GgufHeader:
    return GgufHeader(3, {"general.architecture": "demo", **{f"demo.{key}": value for key, value in metadata.items()}})


def arrangement(model: ModelConfig, worker: Node, head: Node, *, tunnelled: bool = False,
                **config: object) -> Arrangement:
    spec = ServiceSpec(id="worker-50052", kind=ServiceKind.WORKER, argv=(), port=50052)
    seat = Seat(WorkerChoice(worker, WorkerConfig(devices=("CUDA0", "CUDA1")), RPC), "10.0.0.3",
                "127.0.0.1" if tunnelled else "10.0.0.3", 50152 if tunnelled else 50052, spec, tunnelled)
    made = Arrangement(Choice(model, head, SERVER, (seat.choice,)), NodeConfig("atlas", head=HeadConfig(**config)),
                       header(), 1, (seat,), Flags.parse(HELP), (4, 0, 3), (LocalDevice("CUDA0", 1),))
    made.spoken[seat.endpoint] = (4, 0, 2)
    return made


ATLAS = node("atlas", interface("eth0", LinkKind.WIRED, "10.0.0.2/24"))
BOLT = node("bolt", interface("eth0", LinkKind.WIRED, "10.0.0.3/24"), interface("ib0", LinkKind.WIRED, "10.9.0.3/24"),
            services=(record("b9999 (abcdef0)"),))


def test_the_command_lines_own_words_win_over_the_models_settings() -> None:
    model = ModelConfig("m", "/m.gguf", kv_type_k="q8_0", kv_type_v="f16", flash_attention="on", slots=4,
                        extra_args=("-fa", "off", "-ctv", "q4_0", "-np", "1", "--spec-type", "ngram-mod,draft-simple",
                                    "-md", "/d.gguf", "-sm", "row"))
    found = situation_of(arrangement(model, BOLT, ATLAS, extra_args=("-fa", "auto")))
    assert (found.kv_type_k, found.kv_type_v, found.flash_attention, found.slots) == ("q8_0", "q4_0", "off", 1)
    assert found.split_mode == "row"
    assert found.speculating.modes == ("ngram-mod", "draft-simple") and found.speculating.draft_model == "/d.gguf"
    assert found.speculating.known_modes == ("none", "draft-simple", "draft-mtp", "ngram-mod")


def test_experts_that_are_read_from_disk_are_told_with_the_length_of_drafts() -> None:
    needs = Needs(shared=10, cache=10, buffers=10, prompts=0, token=10, experts=100)

    def streamed(budget: int, **settings: object) -> Streamed | None:
        made = arrangement(ModelConfig("m", "/m.gguf", **settings), BOLT, ATLAS)
        made.streaming = Streaming(ExpertsConfig(budget), "", (), None, None, needs, None, Bound(Way.FIRST, budget), (),
                                   True, False, ())
        return situation_of(made).streamed

    assert streamed(130) is None
    assert situation_of(arrangement(ModelConfig("m", "/m.gguf"), BOLT, ATLAS)).streamed is None
    assert streamed(90) == Streamed(4)
    assert streamed(90, draft=DraftConfig("/d.gguf", length=8)) == Streamed(9)
    assert streamed(90, extra_args=("--spec-draft-n-max", "1")) == Streamed(2)
    assert streamed(90, speculation=SpeculationConfig()) == Streamed(4, outside=True)
    assert streamed(90, speculation=SpeculationConfig(SpeculationMode.OFF)) == Streamed(4)


def test_a_worker_is_told_with_what_runs_there_what_it_speaks_and_how_it_is_reached() -> None:
    found = situation_of(arrangement(ModelConfig("m", "/m.gguf"), BOLT, ATLAS)).workers[0]
    assert (found.node, found.port, found.bind, found.dial, found.devices) == ("bolt", 50052, "10.0.0.3", "10.0.0.3", 2)
    assert (found.protocol, found.running_build, found.link) == ((4, 0, 2), "b9999 (abcdef0)", LinkKind.WIRED)
    assert found.rdma_addresses == ("10.9.0.3",)


def test_a_tunnel_goes_the_way_that_the_session_goes() -> None:
    worker = Node("bolt", address=Address("10.0.0.3", kind=LinkKind.WIFI), reading=BOLT.reading)
    found = situation_of(arrangement(ModelConfig("m", "/m.gguf"), worker, ATLAS, tunnelled=True)).workers[0]
    assert found.tunnelled and found.link is LinkKind.WIFI


def test_the_worse_end_of_a_way_counts() -> None:
    on_air = node("atlas", interface("wlan0", LinkKind.WIFI, "10.0.0.2/24"),
                  interface("eth1", LinkKind.WIRED, "10.1.0.2/24"))
    assert worse_link(BOLT, on_air, "10.0.0.3") is LinkKind.WIFI
    assert worse_link(BOLT, ATLAS, "10.0.0.3") is LinkKind.WIRED
    assert worse_link(BOLT, ATLAS, "192.168.1.1") is LinkKind.UNKNOWN
    assert worse_link(Node("bare"), ATLAS, "10.0.0.3") is LinkKind.UNKNOWN


def test_integrated_gpus_count_only_where_they_are_named() -> None:
    mixed = node("mixed", devices=(Device("CUDA0", DeviceKind.CUDA), Device("ROCm0", DeviceKind.ROCM, integrated=True),
                                   Device("CPU", DeviceKind.CPU)))
    assert vendors_of(mixed) == (DeviceKind.CUDA,)
    assert vendors_of(mixed, ("ROCm0", "CPU")) == (DeviceKind.ROCM,)
    assert vendors_of(Node("bare")) == ()


def test_a_worker_that_has_ended_runs_no_build() -> None:
    assert running_build(None) == running_build(record("b1", alive=False)) == ""
    assert running_build(record("b2")) == "b2"


def test_a_models_traits_come_from_its_header() -> None:
    plain = traits_of(header(**{"attention.head_count": 8, "embedding_length": 640}))
    assert (plain.architecture, plain.key_lengths, plain.value_lengths) == ("demo", (80,), (80,))
    assert plain.draft_head is False and not plain.latent
    special = traits_of(header(**{"attention.key_length": 256, "attention.key_length_swa": 128,
                                  "attention.value_length": 128, "attention.kv_lora_rank": 512,
                                  "nextn_predict_layers": 1}))
    assert special.key_lengths == (128, 256) and special.value_lengths == (128,)
    assert special.latent and special.draft_head
    assert traits_of(GgufHeader(3)).key_lengths == ()
