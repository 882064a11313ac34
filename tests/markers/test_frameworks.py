"""What frameworks write: texts as in their sources beside what they tell, and small reports of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.golden import check
from tests.markers.test_dialects import said
from tests.work import lines_of
from tracekit.markers.base import RangeMarker as Range, StepMarker as Step
from tracekit.markers.domains import has_layers, is_library
from tracekit.markers.phases import BACKWARD, DATA, FORWARD, phase_of
from tracekit.markers.tensorrt import module_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.dataset.opening import Dataset
    from tracekit.markers.base import Marker

    Parse = Callable[..., Dataset]

FSDP = [
    ("FSDP::root_pre_forward", Range("FSDP::root_pre_forward", "forward")),
    ("FSDP::pre_forward (layers.3)", Range("FSDP::pre_forward (layers.3)", "forward")),
    (
        "FSDP::pre_forward (blocks.10._checkpoint_wrapped_module), seq = 3, op_id = 12",
        Range("FSDP::pre_forward (blocks.10)", "forward"),
    ),
    ("FSDP::post_backward_reduce (_orig_mod.norm)", Range("FSDP::post_backward_reduce (norm)", "backward")),
    ("FSDP::post_forward (_orig_mod)", Range("FSDP::post_forward", "forward")),
    ("FSDP::all_gather (layers.3, layers.4) [pg=8]", Range("FSDP::all_gather (layers.3, layers.4) [pg=8]")),
    ("FSDP::backward_prefetch for layers.3", Range("FSDP::backward_prefetch for layers.3", "backward")),
    ("FSDP::inputs_to_device", Range("FSDP::inputs_to_device", "forward")),
    ("FullyShardedDataParallel.forward", Range("FullyShardedDataParallel.forward", "forward")),
    (
        "FullyShardedDataParallel._post_backward_hook, op_id = 3",
        Range("FullyShardedDataParallel._post_backward_hook", "backward"),
    ),
    ("FullyShardedDataParallel.rate_limiter", Range("FullyShardedDataParallel.rate_limiter")),
    ("DistributedDataParallel.forward", Range("DistributedDataParallel.forward", "forward")),
]

PIPELINING = [
    ("PP:2F0", Range("PP:2F*", "forward")),
    ("PP:2B11", Range("PP:2B*", "backward")),
    ("PP:0I3", Range("PP:0I*", "backward")),
    ("PP:2UNSHARD", Range("PP:2UNSHARD")),
    ("PP:3SEND_F1", Range("PP:3SEND_F*")),
    ("PP:(1F2;0B3)OVERLAP_F_B", Range("PP:(1F*;0B*)OVERLAP_F_B")),
]

COMPILED = [
    ("Torch-Compiled Region: 0/1", Range("Torch-Compiled Region: 0/1", compiled=True)),
    ("## Call CompiledFxGraph fkyo5v2ux3 ##, op_id = 4", Range("## Call CompiledFxGraph * ##", compiled=True)),
    ("graph_3_inductor_wrapper_call", Range("graph_3_inductor_wrapper_call", compiled=True)),
]

DEEPSPEED = [
    ("DeepSpeedEngine.forward", Range("DeepSpeedEngine.forward", "forward")),
    ("DeepSpeedEngine.backward", Range("DeepSpeedEngine.backward", "backward")),
    ("DeepSpeedEngine.allreduce_gradients", Range("DeepSpeedEngine.allreduce_gradients", "backward")),
    ("DeepSpeedZeroOptimizer_Stage3.step", Range("DeepSpeedZeroOptimizer_Stage3.step", "optimizer")),
    (
        "DeepSpeedZeroOptimizer_Stage3.__avg_scatter_grads",
        Range("DeepSpeedZeroOptimizer_Stage3.__avg_scatter_grads", "backward"),
    ),
    (
        "DeepSpeedZeRoOffload.setup_zero_stage3_hooks.<locals>._start_of_forward_hook",
        Range("DeepSpeedZeRoOffload.setup_zero_stage3_hooks.<locals>._start_of_forward_hook", "forward"),
    ),
    (
        "DeepSpeedZeRoOffload._register_deepspeed_module.<locals>._pre_backward_module_hook",
        Range("DeepSpeedZeRoOffload._register_deepspeed_module.<locals>._pre_backward_module_hook", "forward"),
    ),
    (
        "PartitionedParameterCoordinator.__all_gather_params",
        Range("PartitionedParameterCoordinator.__all_gather_params"),
    ),
]

MEGATRON = [
    (
        "megatron.core.transformer.attention.forward.qkv",
        Range("megatron.core.transformer.attention.forward.qkv", "forward"),
    ),
    (
        "megatron.core.transformer.transformer_layer._forward_mlp.mlp",
        Range("megatron.core.transformer.transformer_layer._forward_mlp.mlp", "forward"),
    ),
    (
        "megatron.core.fusions.fused_bias_swiglu.backward",
        Range("megatron.core.fusions.fused_bias_swiglu.backward", "backward"),
    ),
    (
        "megatron.core.pipeline_parallel.p2p_communication.send_forward_recv_backward",
        Range("megatron.core.pipeline_parallel.p2p_communication.send_forward_recv_backward"),
    ),
    ("layer_3f-layer_5b", Range("layer_3f-layer_5b")),
    ("layer_3f", Range("layer_3f", "forward")),
    ("layer_5b", Range("layer_5b", "backward")),
    ("moe_dispatch backward", Range("moe_dispatch backward", "backward")),
    ("mlp wgrad", Range("mlp wgrad", "backward")),
    ("MFSDP decoder.layers.0 forward", Range("MFSDP decoder.layers.0 forward", "forward")),
    (
        "transformer_engine._Linear.forward.qkv.gemm",
        Range("transformer_engine._Linear.forward.qkv.gemm", "forward"),
    ),
    (
        "transformer_engine._LayerNormLinear.backward.dgrad_gemm",
        Range("transformer_engine._LayerNormLinear.backward.dgrad_gemm", "backward"),
    ),
    ("Linear forward", Range("Linear forward", "forward")),
    ("TELayerNormColumnParallelLinear forward", Range("TELayerNormColumnParallelLinear forward", "forward")),
]

LIGHTNING = [
    (
        "[pl][module]torch.nn.modules.linear.Linear: encoder.0, op_id = 3",
        Range("encoder.0 (Linear)", "forward"),
    ),
    (
        "[pl][profile][Strategy]DDPStrategy.training_step",
        Range("[Strategy]DDPStrategy.training_step", "forward"),
    ),
    ("[pl][profile][Strategy]DDPStrategy.backward", Range("[Strategy]DDPStrategy.backward", "backward")),
    ("[pl][profile][LightningModule]Net.optimizer_step", Range("[LightningModule]Net.optimizer_step", "optimizer")),
    (
        "[pl][profile][_TrainingEpochLoop].train_dataloader_next",
        Range("[_TrainingEpochLoop].train_dataloader_next", "data"),
    ),
    (
        "[pl][profile][Callback]ModelCheckpoint{'monitor': None, 'mode': 'min'}.on_train_batch_end",
        Range("[Callback]ModelCheckpoint.on_train_batch_end"),
    ),
    ("[pl][profile]run_training_batch, op_id = 12", Step("run_training_batch", "train")),
]

SERVING = [
    (
        "[Executor] _forward_step 12: 1 ctx reqs, 128 ctx tokens, 4 gen reqs",
        Step("[Executor] _forward_step 12: 1 ctx reqs, 128 ctx tokens, 4 gen reqs", "mixed", 12, 5),
    ),
    (
        "[Executor] _forward_step 3: 2 ctx reqs, 64 ctx tokens, 0 gen reqs",
        Step("[Executor] _forward_step 3: 2 ctx reqs, 64 ctx tokens, 0 gen reqs", "prefill", 3, 2, 64),
    ),
    (
        "[Executor] _forward_step: 0 ctx reqs, 8 gen reqs",
        Step("[Executor] _forward_step: 0 ctx reqs, 8 gen reqs", "decode", None, 8),
    ),
    ("gpu_model_runner: forward", Range("gpu_model_runner: forward", "forward")),
]

XLA = [
    ("XlaModule:#hlo_module=jit_f,program_id=3#", Range("XlaModule jit_f")),
    ("XlaModule:#prefix=jit(f)/jit(main),hlo_module=jit_f,program_id=3#", Range("XlaModule jit_f")),
    ("XlaModule:#hlo_module=jit_f#", Range("XlaModule jit_f")),
    ("Thunk:#hlo_op=fusion.3#", Range("Thunk fusion.3")),
    ("Thunk:#hlo_op=fusion.3,hlo_module=jit_f,program_id=4#", Range("Thunk fusion.3")),
    (
        "Thunk:#name=jvp(Model)/layer_3/dot_general,hlo_op=gemm.1,unique_hlo_op_id=12#",
        Range("Thunk jvp(Model)/layer_3/dot_general (gemm.1)", "forward"),
    ),
    (
        "Thunk:#name=jit(f)/transpose(jvp(Model))/jvp()/mul,hlo_op=fusion#",
        Range("Thunk jit(f)/transpose(jvp(Model))/jvp()/mul (fusion)", "backward"),
    ),
    (
        "Thunk:#name=transpose(jvp(M))/checkpoint/rematted_computation/mul,hlo_op=fusion.1#",
        Range("Thunk transpose(jvp(M))/checkpoint/rematted_computation/mul (fusion.1)", "recompute"),
    ),
    ("Thunk:#name=dot[dims=((1,), (0,))],hlo_op=gemm#", Range("Thunk dot[dims=((1,), (0,))] (gemm)")),
    ("XlaCompile:#module=jit_f,program_id=3#", Range("XlaCompile jit_f", "compile")),
    ("XlaPass:#name=fusion,module=jit_f,program_id=3#", Range("XlaPass fusion (jit_f)", "compile")),
]

PLAIN = [
    "FSDP",
    "FSDP::",
    "PP:2",
    "PP:",
    "Forward pass",
    "Forward 3",
    "Backward",
    "## Call ##",
    "DeepSpeed",
    "DeepSpeedEngine",
    "layer_3",
    "layer_",
    "my forward",
    "mlp forward pass",
    "megatron",
    "[pl][profile]",
    "[pl][other]a.b: c",
    "[Executor] _forward_step 12",
    "gpu_model_runner: preprocess",
    "Thunk:#hlo_op=#",
    "Thunk:#hlo_op=cut",
    "Xla is fast",
    "ncclAllReduce",
    "nvte_layernorm_fwd",
    "train_step",
]


@pytest.mark.parametrize(
    ("text", "marker"),
    FSDP + PIPELINING + COMPILED + DEEPSPEED + MEGATRON + LIGHTNING + SERVING + XLA,
    ids=lambda it: str(it)[:60],
)
def test_a_frameworks_text_tells_what_stands_beside_it(text: str, marker: Marker) -> None:
    assert said(text) == marker


@pytest.mark.parametrize("text", PLAIN)
def test_a_text_that_looks_like_a_frameworks_stays_plain(text: str) -> None:
    assert said(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "FSDP::all_gather (" + "_orig_mod." * 9_000,
        "PP:(" + "1F2;" * 9_000,
        "DeepSpeedEngine" + ".<locals>" * 9_000,
        "megatron" + ".a" * 30_000,
        "[pl][profile]" + "{" * 60_000,
        "[pl][module]" + "a." * 30_000,
        "[Executor] _forward_step " + "1" * 60_000,
        "Thunk:#" + ",name=" * 9_000,
        "Thunk:#name=" + "transpose(jvp(" * 9_000 + "#",
        "transformer_engine.a.forward" + ".b" * 30_000,
        "Torch-Compiled Region: " + "0/" * 30_000,
    ],
    ids=lambda text: text[:24],
)
def test_hostile_texts_cost_no_more_than_their_length(text: str) -> None:
    assert lines_of(lambda: said(text)) <= 4 * lines_of(lambda: said(text[: len(text) // 4])) + 100


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Forward 3, op_id = 9", FORWARD),
        ("Backward 12", BACKWARD),
        ("enumerate(DataPipe)#MapperIterDataPipe", DATA),
    ],
)
def test_texts_of_torch_tell_phases(text: str, code: int) -> None:
    phase = phase_of(text)
    assert phase is not None
    assert phase.code == code


@pytest.mark.parametrize(
    ("domain", "library", "layers"),
    [
        ("NCCL", True, False),
        ("cuBLASLt", True, False),
        ("libcudf", True, False),
        ("cudf_python-spill", True, False),
        ("librmm", True, False),
        ("CCCL", True, False),
        ("aws-ofi-nccl gin_comm 0x7f3a_0", True, False),
        ("TensorRT", True, True),
        ("myelin-exec", True, False),
        ("TensorRT-LLM", False, False),
        ("DeepSpeed", False, False),
        ("TSL", False, False),
        ("my domain", False, False),
    ],
)
def test_domains_are_libraries_frameworks_or_users(domain: str, *, library: bool, layers: bool) -> None:
    assert (is_library(domain), has_layers(domain)) == (library, layers)


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
    check(
        dataset,
        "kernels",
        """
        name      module                                                                                   phase
        gather    FSDP::pre_forward (layers.0).FSDP::all_gather (layers.0)                                 forward
        again     autograd::engine::evaluate_function: MmBackward0.FSDP::pre_forward (layers.0)            recompute
        prefetch  autograd::engine::evaluate_function: MmBackward0.FSDP::all_gather (layers.0)             backward
        reduce    FSDP::post_backward (layers.0)                                                           backward
        """,
    )


def test_a_forward_pass_on_a_thread_of_autograd_runs_again(parsed: Parse) -> None:
    dataset = parsed("""
        named  2   0   0 pt_autograd_0
        range  2 200 300 transformer_engine._Linear.forward.qkv
        launch 2 220 230 #1
        kernel 1 240 245 #1 again
        range  2 310 340 transformer_engine._Linear.backward.qkv
        launch 2 320 330 #2
        kernel 1 340 345 #2 gradient
    """)
    check(dataset, "kernels", "name  phase\nagain  recompute\ngradient  backward")


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
    check(dataset, "modules", "path  kind\ntop  module")
    check(
        dataset,
        "kernels",
        """
        name    module  phase
        inside  top     backward
        beside  -       forward
        """,
    )
    check(
        dataset,
        "ranges",
        """
        marker  module_id
        -       -
        module  0
        -       0
        """,
    )
    assert dataset.manifest["hierarchy"]["by"] == "modules"


def test_layers_of_tensorrt_are_places_even_if_they_run_once(parsed: Parse) -> None:
    dataset = parsed("""
        domain  1  0   - 1 TensorRT
        range@1 1  0 100 ExecutionContext::enqueue
        range@1 1 10  20 Conv_0 + Relu_1
        range@1 1 20  30 Conv_2 + Relu_3
        range@1 1 30  40 Reformatting CopyNode for Input Tensor 0 to Conv_2 + Relu_3
        range@1 1 40  50 (Unnamed Layer* 7) [Identity]
    """)
    assert dataset.modules().name.tolist() == [
        "TensorRT:ExecutionContext::enqueue",
        "TensorRT:Conv_0 + Relu_1",
        "TensorRT:Conv_2 + Relu_3",
        "TensorRT:Reformatting CopyNode for Input Tensor 0 to Conv_2 + Relu_3",
        "TensorRT:(Unnamed Layer* 7) [Identity]",
    ]


@pytest.mark.parametrize(
    ("layer", "module"),
    [
        ("/conv1/Conv", "conv1"),
        ("/layer1/layer1.0/conv1/Conv + /layer1/layer1.0/relu/Relu", "layer1.0"),
        ("/blocks.3/blocks.3.1/Conv", "blocks.3.1"),
        ("/blocks.0/blocks.0.0/Pad + /blocks.0/blocks.0.1/Conv", "blocks.0"),
        ("/blocks.8/blocks.8.0/fc/fc.0_1/Conv", "blocks.8.0.fc.0"),
        ("/model/layer_1/Gemm", "model.layer_1"),
        ("PWN(PWN(/blocks.3/blocks.3.1/sigmoid/Sigmoid), /blocks.3/blocks.3.1/Mul)", "blocks.3.1"),
        ("Reformatting CopyNode for Input Tensor 0 to /fc/Gemm", "fc"),
        ("/a/b/ReduceMean_output_0 copy", "a.b"),
        ("{ForeignNode[/encoder/layers.0/Add.../encoder/layers.5/norm/Div]}", "encoder"),
        ("{ForeignNode[/ConstantOfShape_3_output_0.../ScatterND_23]}", ""),
        ("/a/b/Conv + /Relu", ""),
        ("/Reshape_3", ""),
        ("Conv_0 + Relu_1", ""),
        ("(Unnamed Layer* 3) [Identity]", ""),
        ("a 1/2/3 b", ""),
        ("/a../b/Conv", ""),
        ("/" + "a/" * 90 + "Conv", ""),
        ("", ""),
    ],
)
def test_a_layer_of_tensorrt_is_part_of_the_module_that_has_all_its_nodes(layer: str, module: str) -> None:
    assert ".".join(module_of(layer)) == module


def test_layers_of_tensorrt_stand_below_their_modules(parsed: Parse) -> None:
    dataset = parsed("""
        domain  1  0   - 1 TensorRT
        range   1  0 100 infer
        range@1 1 10  90 ExecutionContext::enqueue
        range@1 1 20  40 /layer1/layer1.0/conv1/Conv
        launch  1 25  30 #1
        kernel  1 50  60 #1 conv
        range@1 1 50  80 /layer1/layer1.0/conv2/Conv + /layer1/layer1.0/Add
        launch  1 55  60 #2
        kernel  1 70  80 #2 conv
    """)
    enqueue = "infer.TensorRT:ExecutionContext::enqueue"
    check(
        dataset,
        "modules",
        f"""
        path                                                                            kind    parent_id
        infer                                                                           range   -
        {enqueue}                                                                       range   0
        {enqueue}.layer1                                                                module  1
        {enqueue}.layer1.0                                                              module  2
        {enqueue}.layer1.0.conv1                                                        module  3
        {enqueue}.layer1.0.conv1.TensorRT:/layer1/layer1.0/conv1/Conv                   range   4
        {enqueue}.layer1.0.TensorRT:/layer1/layer1.0/conv2/Conv + /layer1/layer1.0/Add  range   3
        """,
    )
    assert dataset.modules().name.tolist()[-1] == "TensorRT:/layer1/layer1.0/conv2/Conv + /layer1/layer1.0/Add"
    check(
        dataset,
        "calls",
        f"""
        module                                                                          kernel_count  parent_call_id
        infer                                                                           2             -
        {enqueue}                                                                       2             0
        {enqueue}.layer1.0.conv1.TensorRT:/layer1/layer1.0/conv1/Conv                   1             1
        {enqueue}.layer1.0.TensorRT:/layer1/layer1.0/conv2/Conv + /layer1/layer1.0/Add  1             1
        """,
    )


def test_programs_of_xla_fold_by_their_names(parsed: Parse) -> None:
    dataset = parsed("""
        domain  1   0   - 1 TSL
        range@1 1   0 100 XlaModule:#hlo_module=jit_step,program_id=3#
        range@1 1  10  40 Thunk:#name=jvp(M)/dot,hlo_op=gemm.1,unique_hlo_op_id=9#
        launch  1  20  30 #1
        kernel  1  50  60 #1 gemm
        range@1 1 200 300 XlaModule:#hlo_module=jit_step,program_id=4#
        range@1 1 210 240 Thunk:#name=transpose(jvp(M))/dot,hlo_op=gemm.2,unique_hlo_op_id=10#
        launch  1 220 230 #2
        kernel  1 250 260 #2 gemm
    """)
    check(
        dataset,
        "kernels",
        """
        name  module                                                      phase
        gemm  XlaModule jit_step.Thunk jvp(M)/dot (gemm.1)                forward
        gemm  XlaModule jit_step.Thunk transpose(jvp(M))/dot (gemm.2)     backward
        """,
    )


def test_batches_of_lightning_are_steps(parsed: Parse) -> None:
    lines = []
    for at in (0, 1000):
        lines += [
            f"range  1 {at} {at + 900} [pl][profile]run_training_batch, op_id = {at}",
            f"range  1 {at + 10} {at + 800} [pl][profile][LightningModule]Net.optimizer_step, op_id = {at + 1}",
            f"range  1 {at + 20} {at + 300} [pl][profile][Strategy]DDPStrategy.training_step, op_id = {at + 2}",
            f"range  1 {at + 30} {at + 200} [pl][module]nets.MLP: encoder, op_id = {at + 3}",
            f"launch 1 {at + 40} {at + 50} #{at + 1}",
            f"kernel 1 {at + 60} {at + 70} #{at + 1} gemm",
            f"launch 1 {at + 400} {at + 410} #{at + 2}",
            f"kernel 1 {at + 420} {at + 430} #{at + 2} adam",
        ]
    dataset = parsed("\n".join(lines))
    check(dataset, "steps", "name  kind\nrun_training_batch  train\nrun_training_batch  train")
    step = "run_training_batch.[LightningModule]Net.optimizer_step"
    check(
        dataset,
        "kernels",
        f"""
        name  module                                                     phase      step_id
        adam  {step}                                                     optimizer  0
        adam  {step}                                                     optimizer  1
        gemm  {step}.[Strategy]DDPStrategy.training_step.encoder (MLP)  forward    0
        gemm  {step}.[Strategy]DDPStrategy.training_step.encoder (MLP)  forward    1
        """,
    )
