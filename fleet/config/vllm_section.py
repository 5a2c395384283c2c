"""`vllm:` of a model in fleet.yaml, and what a model that vLLM serves cannot say."""

from __future__ import annotations

from fleet.config.fields import choice, environment, integer, many, port, word
from fleet.config.form import Form, Section
from fleet.config.schema import RuntimeName, VllmConfig, VllmForm

VLLM_KEYS = ("form", "tensor_parallel", "layers", "master_port", "ray_port", "program", "env")
LLAMA_ALONE = ("kv", "flash_attention", "gpu_layers", "split", "mode", "experts")   # nothing to vLLM


def vllm(form: Form) -> VllmConfig:
    """The settings of one model."""
    section = Section(form, VLLM_KEYS, "a mapping with keys such as form and tensor_parallel")
    default = VllmConfig()
    program = word(section["program"], "", "the path of `vllm` on the nodes")
    if program and not program.startswith("/"):
        section["program"].wrong(f"{program!r} is no whole path", "a path such as /opt/vllm/bin/vllm")
    return VllmConfig(
        form=choice(section["form"], VllmForm, default.form),
        tensor_parallel=integer(section["tensor_parallel"], None, 1, 64, "a number of GPUs from 1 to 64"),
        layers=many(section["layers"], lambda part: integer(part, None, 1, 10_000, "a number of layers"),
                    "a list of layers, one number a node, for example [20, 12]"),
        master_port=port(section["master_port"], default.master_port),
        ray_port=port(section["ray_port"], default.ray_port),
        program=program,
        env=environment(section["env"]),
    )


def check_runtime(section: Section, runtime: RuntimeName) -> None:
    """Note settings that the model's runtime does not know."""
    if runtime is RuntimeName.VLLM:
        for key in LLAMA_ALONE:
            if section[key].written:
                section[key].wrong(f"vLLM knows no `{key}`", "`runtime: llama.cpp`, or what vLLM has for it in "
                                                             "`extra_args`")
    elif section["vllm"].written:
        section["vllm"].wrong("this model is not served by vLLM", "`runtime: vllm` beside it")
