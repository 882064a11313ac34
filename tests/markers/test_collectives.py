"""Kernels that communicate, by names that libraries' sources have, and kernels that only sound alike."""

import gzip
import json

import pytest

from tests.needs import TRACES
from tracekit.markers.collectives import communication, operation_of

COMMUNICATES = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": "all_reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)": "send_recv",
    "_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE": "send_recv",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL": "reduce",
    "ncclSymkDevKernel_ReduceScatter_LL_sum_f32": "reduce_scatter",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": "unknown",
    "mscclKernel_Sum_float_Simple_false": "unknown",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::Signal*, int)": "all_reduce",
    "void sglang::cross_device_reduce_2stage<half, 4>(sglang::RankData*)": "all_reduce",
    "_ZN5aiter26cross_device_reduce_2stageIDF16bLi8ELb0EEEvPNS_8RankDataEii": "all_reduce",
    "cross_device_reduce_1stage": "all_reduce",
    "void aiter::allreduce_fusion_kernel_1stage<bf16>(int)": "all_reduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
    "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false>(int)": "all_reduce",
    "moefinalize_allreduce_fusion_kernel_oneshot_lamport": "all_reduce",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8, true>(int)": "all_reduce",
    "void tensorrt_llm::mnnvl::twoshotAllreduceKernel<8>(int)": "all_reduce",
    "void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<1>(int)": "dispatch",
    "flashinfer::trtllm_alltoall::moeAllToAllKernel(int)": "all_to_all",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)": "all_reduce",
    "void <unnamed>::multimem_all_gather_kernel<(int)16>(char *)": "all_gather",
    "two_shot_all_reduce_kernel_inplace": "all_reduce",
    "void flashinfer::trtllm_mnnvl_allreduce::RMSNormLamport<8>(int)": "unknown",
    "one_shot_all_reduce_bias_rms_norm_kernel": "all_reduce",
    "c10d::nvshmem_extension::allToAllV(void*, void*, long*, unsigned long, int, int)": "all_to_all",
    "void rdxn_on_stream_kernel<float, (rdxn_ops)1>(int)": "all_reduce",
    "void barrier_on_stream_kernel_threadgroup<2>(int)": "barrier",
    "nvshmemi_proxy_rma_entrypoint(int)": "unknown",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": "dispatch",
    "void deep_ep::internode_ll::combine<true, 7168, 9>(void*, void*)": "combine",
    "void deep_ep::internode::notify_dispatch<false, 4>(int const*)": "dispatch",
    "_ZN7deep_ep9intranode7combineI13__nv_bfloat16Li8ELi768ELi4096EEEvPT_": "combine",
    "void hybrid_ep::combine_kernel<1>(int)": "combine",
    "void mori::moe::EpDispatchIntraNodeKernel<float>(mori::moe::Args<float>)": "dispatch",
    "void dispatchKernel<10u, true, false>(int*, std::byte*)": "dispatch",
    "void a2a_combine_recv_kernel<true>(int)": "combine",
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half,4>, true>, __half>(int)": (
        "all_reduce"
    ),
    "void mscclpp::collective::allgatherFullmesh2<true>(int)": "all_gather",
    "void allreduce7<float>(float*)": "all_reduce",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop": "reduce_scatter",
    "iris_all_gather_kernel.kd": "all_gather",
    "gloo:all_reduce": "all_reduce",
    "ucc:allgather": "all_gather",
}
COMPUTES = """
    gemm
    void one_shot_topk_kernel<float>(float*)
    two_shot_sampling_kernel
    void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>(flash::Flash_fwd_params)
    void flash_fwd_mla_combine_kernel<float>(int)
    flash_fwd_splitkv_combine_kernel
    void cutlass::device_kernel<flash::FlashAttnFwdCombine<int> >(int)
    void flashinfer::MergeStatesKernel<8>(int)
    void transformer_engine::moe_permute_kernel<float>(int)
    void transformer_engine::dispatch::mxfp8::quantize_kernel::quantize_mxfp8_kernel<1>(int)
    moe_combine_kernel
    fused_moe_dispatch_kernel
    dispatch
    combine
    void at::native::dispatch<4>(int)
    void deep_ep::layout::get_dispatch_layout<256, 32>(long const*)
    void deep_ep::elastic::dispatch_copy_epilogue_impl<1>(int)
    void cub::DeviceReduceKernel<cub::Policy>(int)
    void splitKreduce_kernel<32>(int)
    void at::native::reduce_kernel<512>(int)
    void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::ReduceAdd>(int)
    scatter_reduce_kernel
    block_all_reduce_sum_f32_f32_kernel(float*, float*, int)
    void oneflow::WarpAllReduceKernel<float>(int)
    triton_poi_fused_all_gather_into_tensor_cat_3
    triton_red_fused_all_reduce_wait_tensor_1
    all_gather_matmul_kernel
    void gemm_allreduce_kernel<1>(int)
    void consumer<vllm::cross_device_reduce_1stage>(deep_ep::intranode::dispatch*)
    broadcast_kernel
    _combined_routing_compute
    _Z
    _ZN9999999vllm
"""


HOSTILE = ["a" * 100_000, "a::" * 30_000, "_ZN" + "1a" * 50_000, "<" * 100_000, "_all" * 20_000]
#: One name for all spellings.
OPERATIONS = {
    "_allgather_base": "all_gather",
    "allreduce_coalesced": "all_reduce",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_allv": "all_to_all",
    "ncclBcast": "broadcast",
    "ncclSend": "send",
    "ncclCommInitRank": None,
}


def test_a_kernel_communicates_whose_name_is_that_of_a_library_not_one_that_sounds_alike() -> None:
    known = {name: communication(name) for name in COMMUNICATES}
    assert {name: one and one.operation for name, one in known.items()} == COMMUNICATES
    assert not [name for name in (*COMPUTES.strip().split("\n    "), *HOSTILE) if communication(name)]
    assert {text: operation_of(text) for text in OPERATIONS} == OPERATIONS


@pytest.mark.traces
def test_in_real_traces_only_collectives_communicate() -> None:
    names = set()
    for path in (TRACES / "kineto").glob("*.json.gz"):
        rows = json.loads(gzip.decompress(path.read_bytes()))
        rows = rows["traceEvents"] if isinstance(rows, dict) else rows
        names |= {row["name"] for row in rows if str(row.get("cat")).lower() == "kernel"}
    found = {name.split("(")[0] if name.startswith("nccl") else "multimem" for name in names if communication(name)}
    assert len(names) > 300
    collectives = {"AllReduce_RING_LL_Sum_float", "Broadcast_RING_LL_Sum_int8_t", "SendRecv_RING_SIMPLE_Sum_int8_t"}
    nccl = {"ncclDevKernel_AllGather_RING_LL", *(f"ncclKernel_{name}" for name in collectives)}
    assert found == {"multimem", *nccl}
