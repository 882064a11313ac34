"""Names of device work: which multiplies no matrices, which may, and why FLOPs of compiled kernels are not known."""

import re
from collections.abc import Mapping
from enum import IntFlag, auto

#: Kernels of PyTorch (aten/src/ATen/native/cuda), vLLM (csrc), Thrust and CUB, by the beginnings of their short names.
_HARMLESS = re.compile(
    r"(vectorized_|unrolled_|index_|legacy_)?elementwise_kernel|vectorized_(templated_)?elementwise|reduce_kernel"
    r"|(CatArrayBatchedCopy|indexSelect|indexFunc|indexing_backward|index_put|gatherTopK|radixFindKthValues|sbtopk)"
    r"|(softmax_warp|cunn_SoftMax|cunn_SpatialSoftMax|softMaxForward|cuCompute|vectorized_layer_norm|RowwiseMoments)"
    r"|(LayerNorm(Forward|Backward)|GroupNorm|ComputeInternalGradients|batch_norm_(collect|transform|backward)|bn_[fb]w)"
    r"|(fused_dropout|embedding_|EmbeddingBag|compute_grad_weight|nll_loss|distribution_|max_pool|avg_pool|adaptive_)"
    r"|(vectorized_gather|upsample|tensor_kernel_scan|radix_sort|DeviceRadixSort|DeviceScan|DeviceReduce|DeviceSelect|DeviceSegmented)"
    r"|(multi_tensor_apply|fill_|arange|scatter_gather|_scatter_gather|write_indices|triu_tril|FillFunctor)"
    r"|((fused_add_)?rms_norm_kernel|act_and_mul_kernel|rotary_embedding_kernel|reshape_and_cache|copy_blocks)",
    re.IGNORECASE,
)
#: Inductor names its kernels after the operators that it put into them.
_FUSED = re.compile(r"triton_(poi|red|per)_")
_PRODUCT_IN_FUSED = re.compile(r"_(b|add|badd)?mm(_|$)|_(add)?mv(_|$)|conv(?!ert)|matmul|attention|dot|linear")

#: Operators that multiply matrices, or call one that does.
_PRODUCT = re.compile(
    r"mm(_|$|[^a-z])|matmul|mv(_|$)|dot|conv|attention|linear|rnn|lstm|gru|einsum|inner|kron|cholesky|(^|_)lu(_|$)"
    r"|linalg|(^|_)qr$|geqrf|o[rm][gm]qr|(^|_)(svd|eig)|solve|inverse|det$|fft|cdist|_euclidean_dist|addr|(^|_)ger$"
    r"|tensordot|mkldnn|cudnn|miopen|trilinear|multi_head|transformer|_fused|quantized|sparse|triton|grouped|pack|custom"
)
_HARMLESS_OPERATORS = re.compile(
    r"_fused_(dropout|rms_norm|adam|adamw|sgd)|_?upsample_|cudnn_batch_norm|cudnn_is_acceptable|miopen_batch_norm"
    r"|mkldnn_(max|adaptive_avg)_pool|linalg_(vector_)?norm$|unpack"
)
#: Nodes of autograd that torch generated: they do their work in operators.
_NODE = re.compile(
    r"(autograd::engine::evaluate_function: )?(torch::autograd::)?(\w+Backward\d+|AccumulateGrad|GraphRoot)|detach_?"
)
#: Operators that ``flop_counter`` does not count, though they multiply.
CPU_ATTENTIONS = (
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
)
#: What MultiheadAttention runs in place of all others in inference, with and without weights as a result.
FUSED_ATTENTION = "aten::_native_multi_head_attention"

_MATRIX = re.compile(
    r"gemm|gemv|xmma|cutlass|cublas|matmul|mma_|_mm_|conv(?!ert)|wgrad|dgrad|winograd|flash(?!_kernel)|attention|attn|fmha|nvjet"
    r"|splitk|dot_kernel|triton_tem_|marlin|machete|awq|gptq|moe",
    re.IGNORECASE,
)
_TENSOR_FLOAT_32 = re.compile(r"tf32|tensorop_s\d+gemm|[^a-z]s1688")
_UNLIKE_LINEAR = re.compile(
    r"flash|attention|attn|fmha|norm|embed|rotary|rope_|softmax|argmax|argmin|kv_cache", re.IGNORECASE
)
_SINGLE = re.compile(r"sgemm|simt|ffma|gemv|gemmk1|gemmSN", re.IGNORECASE)


class Work(IntFlag):
    """What is known of one piece of device work, by its name, or of all work that a call ran itself."""

    UNLISTED = auto()  #: It may multiply matrices: its name is not among those that certainly do not.
    PRODUCT = auto()  #: It has the name of a matrix product.
    CPU_ATTENTION = auto()  #: It is the fused attention of CPUs.
    TENSOR_FLOAT = auto()  #: It multiplies float32 as TF32.
    SINGLE = auto()  #: It multiplies float32 in full precision.
    UNLIKE_LINEAR = auto()  #: It has the name of another kind of layer than a Linear.
    # Only of calls:
    NONE = auto()  #: The call ran no work that is recorded.
    COMPILED = auto()  #: It also holds work of compiled graphs, which is that of the modules inside.
    UNSEEN = auto()  #: Work of it lies in a CUDA graph traced as a whole.
    RECORDED = auto()  #: The dataset holds any work at all.
    BACKWARD = auto()  #: The call is part of a backward pass.
    LOST = auto()  #: Its module launched work that could not be attributed.
    AROUND = auto()  #: It calls other modules.
    NEVER = auto()  #: It ran during a graph capture and was never replayed.
    BY_OPERATORS = auto()  #: Markers of its operators record its FLOPs.
    OPERATORS_UNCLEAR = auto()  #: There are such markers that do not record them.


def kind_of(name: str) -> Work:
    """What the name of a kernel on a GPU shows."""
    if _FUSED.match(name):
        return Work.UNLISTED | Work.PRODUCT if _PRODUCT_IN_FUSED.search(name) else Work(0)
    product = _MATRIX.search(name) is not None
    return _flags(
        {
            Work.UNLISTED: product or not _HARMLESS.match(name),
            Work.PRODUCT: product,
            Work.TENSOR_FLOAT: _TENSOR_FLOAT_32.search(name),
            Work.SINGLE: _SINGLE.search(name),
            Work.UNLIKE_LINEAR: _UNLIKE_LINEAR.search(name),
        }
    )


def operator_kind(name: str) -> Work:
    """What the name of an operator on a CPU shows."""
    if _NODE.fullmatch(name):
        return Work(0)
    product = may_multiply(name)
    return _flags(
        {
            Work.UNLISTED: product or not name.startswith("aten::"),
            Work.PRODUCT: product,
            Work.CPU_ATTENTION: name in (*CPU_ATTENTIONS, FUSED_ATTENTION),
            Work.UNLIKE_LINEAR: _UNLIKE_LINEAR.search(name),
        }
    )


def _flags(holds: Mapping[Work, object]) -> Work:
    return Work(sum(flag for flag, it_does in holds.items() if it_does))


def may_multiply(operator: str) -> bool:
    """Whether an operator multiplies matrices, or may."""
    short = operator.rpartition("::")[2]
    return _PRODUCT.search(short) is not None and _HARMLESS_OPERATORS.match(short) is None


#: The map records none; the report lost launches, so that what is left of the kernel may not be all of it.
UNRECORDED, LOST = "untold", "lost"

_IN_WORDS = {
    UNRECORDED: "the kernel map of its compiled graph records none: record again",
    LOST: "the report lost launches of its compiled graph",
    "sizes": "its compiled graph runs with too many sizes, or with sizes that it computes",
    "divided": "the compiler divided a product between kernels or modules",
    "unclear": "the compiler does not report them",
}


def why(note: str) -> str:
    """The reason, from what a kernel map notes: one of those above, or the name of an operator."""
    return _IN_WORDS.get(note) or f"{note} may multiply matrices, in a compiled graph"
