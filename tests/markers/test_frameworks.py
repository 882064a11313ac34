"""Ranges of frameworks: texts as in their sources next to what they mean, and small reports of each."""

import pytest

from tests.golden import Parse, expect
from tests.markers.test_dialects import said
from tracekit.markers.base import RangeMarker as Range, StepMarker as Step
from tracekit.markers.phases import BACKWARD, DATA, FORWARD, Phase, phase_of
from tracekit.markers.plain import has_layers, is_library, module_of

#: The text of a range, its phase, and its name where it is not the text.
RANGES = """
FSDP::root_pre_forward | forward
FSDP::pre_forward (layers.3) | forward
FSDP::pre_forward (blocks.10._checkpoint_wrapped_module), seq = 3, op_id = 12 | forward | FSDP::pre_forward (blocks.10)
FSDP::post_backward_reduce (_orig_mod.norm) | backward | FSDP::post_backward_reduce (norm)
FSDP::post_forward (_orig_mod) | forward | FSDP::post_forward
FSDP::all_gather (layers.3, layers.4) [pg=8] |
FSDP::backward_prefetch for layers.3 | backward
FullyShardedDataParallel.forward | forward
FullyShardedDataParallel._post_backward_hook, op_id = 3 | backward | FullyShardedDataParallel._post_backward_hook
DistributedDataParallel.forward | forward
PP:2F0 | forward | PP:2F*
PP:2B11 | backward | PP:2B*
PP:3SEND_F1 | | PP:3SEND_F*
PP:(1F2;0B3)OVERLAP_F_B | | PP:(1F*;0B*)OVERLAP_F_B
DeepSpeedEngine.forward | forward
DeepSpeedEngine.backward | backward
DeepSpeedZeroOptimizer_Stage3.step | optimizer
DeepSpeedZeRoOffload._register_deepspeed_module.<locals>._pre_backward_module_hook | forward
PartitionedParameterCoordinator.__all_gather_params |
megatron.core.transformer.attention.forward.qkv | forward
megatron.core.pipeline_parallel.p2p_communication.send_forward_recv_backward |
layer_3f-layer_5b |
layer_3f | forward
moe_dispatch backward | backward
MFSDP decoder.layers.0 forward | forward
transformer_engine._Linear.forward.qkv.gemm | forward
Linear forward | forward
[pl][module]torch.nn.modules.linear.Linear: encoder.0, op_id = 3 | forward | encoder.0 (Linear)
[pl][profile][Strategy]DDPStrategy.training_step | forward | [Strategy]DDPStrategy.training_step
[pl][profile][LightningModule]Net.optimizer_step | optimizer | [LightningModule]Net.optimizer_step
[pl][profile][_TrainingEpochLoop].train_dataloader_next | data | [_TrainingEpochLoop].train_dataloader_next
[pl][profile][Callback]Checkpoint{'mode': 'min'}.on_train_batch_end | | [Callback]Checkpoint.on_train_batch_end
gpu_model_runner: forward | forward
XlaModule:#hlo_module=jit_f,program_id=3# | | XlaModule jit_f
Thunk:#hlo_op=fusion.3,hlo_module=jit_f,program_id=4# | | Thunk fusion.3
Thunk:#name=jvp(M)/layer_3/dot,hlo_op=gemm.1,unique_hlo_op_id=12# | forward | Thunk jvp(M)/layer_3/dot (gemm.1)
Thunk:#name=transpose(jvp(M))/jvp()/mul,hlo_op=fusion# | backward | Thunk transpose(jvp(M))/jvp()/mul (fusion)
Thunk:#name=jvp(M)/rematted_computation/mul,hlo_op=a# | recompute | Thunk jvp(M)/rematted_computation/mul (a)
XlaCompile:#module=jit_f,program_id=3# | compile | XlaCompile jit_f
"""

OTHERS = {
    "Torch-Compiled Region: 0/1": Range("Torch-Compiled Region: 0/1", compiled=True),
    "## Call CompiledFxGraph fkyo5v2ux3 ##, op_id = 4": Range("## Call CompiledFxGraph * ##", compiled=True),
    "graph_3_inductor_wrapper_call": Range("graph_3_inductor_wrapper_call", compiled=True),
    "[pl][profile]run_training_batch, op_id = 12": Step("run_training_batch"),
    **{
        text: Step(text, *of_step)
        for text, *of_step in (
            ("[Executor] _forward_step 12: 1 ctx reqs, 128 ctx tokens, 4 gen reqs", "mixed", 12, 5),
            ("[Executor] _forward_step 3: 2 ctx reqs, 64 ctx tokens, 0 gen reqs", "prefill", 3, 2, 64),
            ("[Executor] _forward_step: 0 ctx reqs, 8 gen reqs", "decode", None, 8),
        )
    },
}

PLAIN = """
FSDP
FSDP::
PP:2
PP:
Forward pass
## Call ##
DeepSpeedEngine
layer_3
layer_
mlp forward pass
megatron
[pl][profile]
[pl][other]a.b: c
[Executor] _forward_step 12
gpu_model_runner: preprocess
Thunk:#hlo_op=#
Thunk:#hlo_op=cut
Xla is fast
nvte_layernorm_fwd
"""


def test_the_range_of_a_framework_has_a_name_and_a_phase_and_other_texts_are_compiled_code_or_steps_or_plain() -> None:
    for line in RANGES.strip().splitlines():
        text, phase, *name = (part.strip() for part in line.split("|"))
        assert said(text) == Range(name[0] if name else text, phase)
    assert {text: said(text) for text in OTHERS} == OTHERS
    assert {text: said(text) for text in PLAIN.strip().splitlines() if said(text)} == {}


def test_texts_of_torch_tell_phases_and_domains_are_libraries_frameworks_or_users() -> None:
    assert phase_of("Forward 3, op_id = 9") == Phase(FORWARD)
    assert phase_of("Backward 12") == Phase(BACKWARD)
    assert phase_of("enumerate(DataPipe)#MapperIterDataPipe") == Phase(DATA)
    domains = ["NCCL", "cuBLASLt", "TensorRT", "myelin-exec", "TensorRT-LLM", "my domain"]
    assert [*filter(is_library, domains)] == ["NCCL", "cuBLASLt", "TensorRT", "myelin-exec"]
    assert [*filter(has_layers, domains)] == ["TensorRT"]


def test_fsdp_tells_names_and_phases_on_a_thread_of_autograd_too(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100 FSDP::pre_forward (layers.0), op_id = 1
        range  1  10  50 FSDP::all_gather (layers.0), op_id = 2
        launch 1  20  30 #1
        kernel 1  40  45 #1 gather
        range  2 200 300 autograd::engine::evaluate_function: MmBackward0, seq = 4, op_id = 7
        range  2 210 240 FSDP::pre_forward (layers.0), op_id = 8
        launch 2 220 230 #2
        kernel 1 240 245 #2 again
        range  2 250 260 FSDP::all_gather (layers.0), op_id = 9
        launch 2 252 254 #3
        kernel 1 260 265 #3 prefetch
        range  2 310 340 FSDP::post_backward (layers.0), op_id = 10
        launch 2 320 330 #4
        kernel 1 340 345 #4 reduce
    """)
    expect(dataset, "kernels")("""
        name      module                                                                                   phase
        gather    FSDP::pre_forward (layers.0).FSDP::all_gather (layers.0)                                 forward
        again     autograd::engine::evaluate_function: MmBackward0.FSDP::pre_forward (layers.0)            recompute
        prefetch  autograd::engine::evaluate_function: MmBackward0.FSDP::all_gather (layers.0)             backward
        reduce    FSDP::post_backward (layers.0)                                                           backward
        """)


def test_frameworks_change_nothing_in_a_report_with_modules_but_unknown_phases(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100 DeepSpeedEngine.forward
        range  1  10  60 {"Module": "top", "Class": "Net", "Phase": "backward"}
        range  1  20  50 FSDP::pre_forward (top)
        launch 1  30  40 #1
        kernel 1  50  55 #1 inside
        launch 1  70  80 #2
        kernel 1  90  95 #2 beside
    """)
    expect(dataset, "modules")("path  kind\ntop  module")
    expect(dataset, "kernels")("name    module  phase\ninside  top     backward\nbeside  -       forward")
    expect(dataset, "ranges")("marker  module_id\n-       -\nmodule  0\n-       0")
    assert dataset.manifest["hierarchy"]["by"] == "modules"


@pytest.mark.parametrize(
    ("layer", "module"),
    [
        ("/conv1/Conv", "conv1"),
        ("/layer1/layer1.0/conv1/Conv + /layer1/layer1.0/relu/Relu", "layer1.0"),
        ("/blocks.8/blocks.8.0/fc/fc.0_1/Conv", "blocks.8.0.fc.0"),
        ("PWN(PWN(/blocks.3/blocks.3.1/sigmoid/Sigmoid), /blocks.3/blocks.3.1/Mul)", "blocks.3.1"),
        ("Reformatting CopyNode for Input Tensor 0 to /fc/Gemm", "fc"),
        ("{ForeignNode[/encoder/layers.0/Add.../encoder/layers.5/norm/Div]}", "encoder"),
        ("/a/b/Conv + /Relu", ""),
        ("/Reshape_3", ""),
        ("a 1/2/3 b", ""),
        ("/a../b/Conv", ""),
        ("/" + "a/" * 90 + "Conv", ""),
        ("", ""),
    ],
)
def test_a_layer_of_tensorrt_is_part_of_the_module_that_has_all_its_nodes(layer: str, module: str) -> None:
    assert ".".join(module_of(layer)) == module


def test_layers_of_tensorrt_stand_below_their_modules_and_are_places_even_if_they_run_once(parsed: Parse) -> None:
    dataset = parsed("""
        domain  1  0   - 1 TensorRT
        range   1  0 100 infer
        range@1 1 10  90 ExecutionContext::enqueue
        range@1 1 11  12 Conv_0 + Relu_1
        range@1 1 12  13 Conv_2 + Relu_3
        range@1 1 20  40 /layer1/layer1.0/conv1/Conv
        launch  1 25  30 #1
        kernel  1 50  60 #1 conv
        range@1 1 50  80 /layer1/layer1.0/conv2/Conv + /layer1/layer1.0/Add
        launch  1 55  60 #2
        kernel  1 70  80 #2 conv
    """)
    enqueue = "infer.TensorRT:ExecutionContext::enqueue"
    expect(dataset, "modules")(f"""
        path                                                                            kind    parent_id
        infer                                                                           range   -
        {enqueue}                                                                       range   0
        {enqueue}.TensorRT:Conv_0 + Relu_1                                              range   1
        {enqueue}.TensorRT:Conv_2 + Relu_3                                              range   1
        {enqueue}.layer1                                                                module  1
        {enqueue}.layer1.0                                                              module  4
        {enqueue}.layer1.0.conv1                                                        module  5
        {enqueue}.layer1.0.conv1.TensorRT:/layer1/layer1.0/conv1/Conv                   range   6
        {enqueue}.layer1.0.TensorRT:/layer1/layer1.0/conv2/Conv + /layer1/layer1.0/Add  range   5
    """)
    assert dataset.modules().name.tolist()[-1] == "TensorRT:/layer1/layer1.0/conv2/Conv + /layer1/layer1.0/Add"
    calls = dataset.table("calls", ["kernel_count", "parent_call_id"]).to_pylist()
    assert [tuple(call.values()) for call in calls] == [(2, None), (2, 0), (0, 1), (0, 1), (1, 1), (1, 1)]
